"""metadata: what attention must know of requests that bring 1 to `dim` tokens each, beside torch and Triton."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from commlib.kernels.metadata import Metadata as Described
from commlib.kernels.metadata import metadata
from commlib.peers.kernels import triton
from commlib.peers.kernels.case import OURS, POISON, Candidate, Case, Compiled, Inputs, Kernel, copy, differing
from commlib.peers.kernels.patterns import SEED
from commlib.timing import Run

TOPK = 2048
LONGEST = 8192  # tokens of a request before
OUTPUTS = 6


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

    def poison(self) -> None:
        """Fill all outputs."""
        for output in self.outputs:
            output.fill_(POISON)

    def wrong(self, returned: Any) -> int:
        """Compare with the loop that the outputs are defined by."""
        expected = [torch.tensor(values, dtype=torch.int32) for values in _loop(self.extend_lens, self.seq_lens)]
        found = list(returned) if isinstance(returned, (tuple, list)) else self.outputs
        if len(found) != OUTPUTS:
            return sum(map(torch.numel, expected))
        return sum(differing(x.reshape(-1).cpu(), y) for x, y in zip(found, expected, strict=True))


class Metadata(Kernel):
    """Requests with 1 to `dim` new tokens; n of them, always as many tokens in all."""

    name = "metadata"
    dims, rows = (8,), (1, 16, 64, 512)
    sweep_dims, sweep_rows = (8,), (1, 4, 16, 64, 128, 512)
    dtypes = (torch.int32,)

    def num_bytes(self, case: Case) -> int:
        """Count both lengths read, four numbers of each token, the ends and the total written."""
        return 4 * (2 * case.n + 4 * _tokens(case) + case.n + 1 + 1)

    def inputs(self, case: Case, sets: int, device: torch.device) -> Sequence[Lengths]:
        """Return sets whose requests come in another order each."""
        draw = torch.Generator().manual_seed(SEED)
        counts = torch.arange(case.n, dtype=torch.int32) % case.dim + 1
        found = []
        for _ in range(sets):
            extend = counts[torch.randperm(case.n, generator=draw)]
            seq = extend + torch.randint(0, LONGEST, (case.n,), generator=draw, dtype=torch.int32)
            found.append(Lengths(extend.to(device), seq.to(device), _tokens(case), self.num_bytes(case)))
        return found

    def candidates(self, case: Case, compiled: Compiled) -> list[Candidate]:
        """Return the one launch of ours, and what it takes of others; the loop on the host cannot be captured."""
        torch_peers = [
            Candidate("torch", _vectorised),
            compiled(vectorised, lambda i: (i.extend_lens, i.seq_lens, i.tokens)),
            Candidate("python loop", _host_loop, graph=False),
        ]
        return [Candidate("commlib", _ours, OURS), copy(), *torch_peers, *triton.metadata(case)]


def _tokens(case: Case) -> int:
    whole, rest = divmod(case.n, case.dim)
    return whole * case.dim * (case.dim + 1) // 2 + rest * (rest + 1) // 2


def _ours(inputs: Lengths) -> Run:
    return partial(metadata, inputs.extend_lens, inputs.seq_lens, TOPK, out=Described(*inputs.outputs))


def vectorised(extend_lens: Tensor, seq_lens: Tensor, tokens: int) -> tuple[Tensor, ...]:
    """Return the outputs in torch's operations, none of which waits for the device."""
    ends = functional.pad(torch.cumsum(extend_lens, 0, dtype=torch.int32), (1, 0))
    requests = torch.arange(len(extend_lens), dtype=torch.int32, device=extend_lens.device)
    request_index = torch.repeat_interleave(requests, extend_lens, output_size=tokens)
    first = seq_lens - extend_lens + 1 - ends[:-1]
    expanded = first[request_index] + torch.arange(tokens, dtype=torch.int32, device=extend_lens.device)
    return expanded, expanded.clamp(max=TOPK), ends, expanded - 1, request_index, ends[-1:]


def _vectorised(inputs: Lengths) -> Run:
    def run() -> object:
        inputs.kept = vectorised(inputs.extend_lens, inputs.seq_lens, inputs.tokens)
        return inputs.kept

    return run


def _host_loop(inputs: Lengths) -> Run:
    device = inputs.extend_lens.device

    def run() -> object:
        found = _loop(inputs.extend_lens, inputs.seq_lens)
        return [torch.tensor(values, dtype=torch.int32, device=device) for values in found]

    return run


def _loop(extend_lens: Tensor, seq_lens: Tensor) -> list[list[int]]:
    expanded: list[int] = []
    request_index: list[int] = []
    ends = [0]
    for request, (extend, seq) in enumerate(zip(extend_lens.tolist(), seq_lens.tolist(), strict=True)):
        expanded += range(seq - extend + 1, seq + 1)
        request_index += [request] * extend
        ends.append(len(expanded))
    clipped = [min(length, TOPK) for length in expanded]
    return [expanded, clipped, ends, [length - 1 for length in expanded], request_index, [len(expanded)]]


KERNEL = Metadata()
