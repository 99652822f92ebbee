"""metadata: what attention must know of requests that bring 1 to `dim` tokens each, beside torch and Triton."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from commlib.kernels.metadata import Metadata, metadata
from commlib.tools.baselines.kernels import triton
from commlib.tools.baselines.kernels.case import OURS, Candidate, Case, Compiled, Inputs, allocating, copy
from commlib.tools.baselines.kernels.sets import SEED
from commlib.tools.timing import Run

TOPK = 2048
LONGEST = 8192  # tokens of a request before


class Lengths(Inputs):
    """Lengths of requests and six outputs: expanded, clipped, cu_seqlens, positions, request_index, total."""

    topk = TOPK

    def __init__(self, extend_lens: Tensor, seq_lens: Tensor, tokens: int, num_bytes: int) -> None:
        self.extend_lens, self.seq_lens, self.tokens = extend_lens, seq_lens, tokens
        new = partial(torch.zeros, dtype=torch.int32, device=extend_lens.device)
        per_token = [new(tokens) for _ in range(4)]
        self.outputs = [*per_token[:2], new(len(extend_lens) + 1), *per_token[2:], new(1)]
        self.source = torch.ones(num_bytes // 2, dtype=torch.uint8, device=extend_lens.device)
        self.target = torch.empty_like(self.source)

    def expected(self) -> list[Tensor]:
        """Run the loop on the host that the outputs are defined by."""
        expanded: list[int] = []
        request_index: list[int] = []
        ends = [0]
        for request, (extend, seq) in enumerate(zip(self.extend_lens.tolist(), self.seq_lens.tolist(), strict=True)):
            expanded += range(seq - extend + 1, seq + 1)
            request_index += [request] * extend
            ends.append(len(expanded))
        clipped = [min(length, TOPK) for length in expanded]
        positions = [length - 1 for length in expanded]
        values = (expanded, clipped, ends, positions, request_index, [len(expanded)])
        return [torch.tensor(of_one, dtype=torch.int32, device=self.extend_lens.device) for of_one in values]


def num_bytes(case: Case) -> int:
    """Count both lengths read, four numbers of each token, the ends and the total written."""
    return 4 * (2 * case.n + 4 * _tokens(case) + case.n + 1 + 1)


def inputs(case: Case, sets: int, device: torch.device) -> Sequence[Lengths]:
    """Return sets whose requests come in another order each."""
    draw = torch.Generator().manual_seed(SEED)
    counts = torch.arange(case.n, dtype=torch.int32) % case.dim + 1
    found = []
    for _ in range(sets):
        extend = counts[torch.randperm(case.n, generator=draw)]
        seq = extend + torch.randint(0, LONGEST, (case.n,), generator=draw, dtype=torch.int32)
        found.append(Lengths(extend.to(device), seq.to(device), _tokens(case), num_bytes(case)))
    return found


def candidates(case: Case, compiled: Compiled) -> list[Candidate]:
    """Return the one launch of ours, and what it takes of others; the loop on the host cannot be captured."""
    peers = [
        allocating("torch", _vectorised, _lengths),
        compiled(_vectorised, _lengths),
        Candidate("python loop", lambda inputs: inputs.expected, graph=False),
    ]
    return [Candidate("commlib", _ours, OURS), copy(), *peers, *triton.metadata(case)]


def _tokens(case: Case) -> int:
    whole, rest = divmod(case.n, case.dim)
    return whole * case.dim * (case.dim + 1) // 2 + rest * (rest + 1) // 2


def _ours(inputs: Lengths) -> Run:
    return partial(metadata, inputs.extend_lens, inputs.seq_lens, TOPK, out=Metadata(*inputs.outputs))


def _lengths(inputs: Lengths) -> tuple[Tensor, Tensor, int]:
    return inputs.extend_lens, inputs.seq_lens, inputs.tokens


def _vectorised(extend_lens: Tensor, seq_lens: Tensor, tokens: int) -> tuple[Tensor, ...]:
    """Return the outputs in torch's operations, none of which waits for the device."""
    ends = functional.pad(torch.cumsum(extend_lens, 0, dtype=torch.int32), (1, 0))
    requests = torch.arange(len(extend_lens), dtype=torch.int32, device=extend_lens.device)
    request_index = torch.repeat_interleave(requests, extend_lens, output_size=tokens)
    first = seq_lens - extend_lens + 1 - ends[:-1]
    expanded = first[request_index] + torch.arange(tokens, dtype=torch.int32, device=extend_lens.device)
    return expanded, expanded.clamp(max=TOPK), ends, expanded - 1, request_index, ends[-1:]
