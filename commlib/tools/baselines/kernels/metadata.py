"""metadata: what attention must know of requests that bring 1 to `dim` tokens each."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from commlib.kernels.metadata import Metadata as Outputs
from commlib.kernels.metadata import metadata
from commlib.tools.baselines.kernels.case import OURS, SEED, Candidate, Case, Inputs
from commlib.tools.timing import Run

TOPK = 2048
MAX_TOKENS = 8192  # of a request before


class Metadata(Case):
    """n requests."""

    kernel = "metadata"

    @property
    def tokens(self) -> int:
        whole, rest = divmod(self.n, self.dim)
        return whole * self.dim * (self.dim + 1) // 2 + rest * (rest + 1) // 2

    @property
    def num_bytes(self) -> int:
        """Both lengths read, four numbers of each token, the ends and the total written."""
        return 4 * (2 * self.n + 4 * self.tokens + self.n + 1 + 1)

    def inputs(self, sets: int, device: torch.device) -> Sequence[Lengths]:
        draw = torch.Generator().manual_seed(SEED)
        counts = torch.arange(self.n, dtype=torch.int32) % self.dim + 1
        made = []
        for _ in range(sets):
            extend = counts[torch.randperm(self.n, generator=draw)]
            seq = extend + torch.randint(0, MAX_TOKENS, (self.n,), generator=draw, dtype=torch.int32)
            made.append(Lengths(self, extend.to(device), seq.to(device)))
        return made

    def candidates(self) -> list[Candidate]:
        return [
            Candidate("commlib", Lengths.ours, OURS),
            Candidate.copy(),
            Candidate.allocating("torch", _vectorised, Lengths.read),
            Candidate.compiled(_vectorised, Lengths.read),
            Candidate.triton(
                "triton", lambda code, inputs: code.deriving(inputs, 1 << max(self.dim - 1, 0).bit_length())
            ),
        ]


class Lengths(Inputs):
    """Lengths of requests and six outputs: expanded, clipped, cu_seqlens, positions, request_index, total."""

    topk = TOPK

    def __init__(self, case: Metadata, extend_lens: Tensor, seq_lens: Tensor) -> None:
        self.extend_lens, self.seq_lens, self.tokens = extend_lens, seq_lens, case.tokens
        new = partial(torch.zeros, dtype=torch.int32, device=extend_lens.device)
        per_token = [new(self.tokens) for _ in range(4)]
        self.outputs = [*per_token[:2], new(len(extend_lens) + 1), *per_token[2:], new(1)]
        self.source = torch.ones(case.num_bytes // 2, dtype=torch.uint8, device=extend_lens.device)
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

    def read(self) -> tuple[Tensor, Tensor, int]:
        return self.extend_lens, self.seq_lens, self.tokens

    def ours(self) -> Run:
        return partial(metadata, self.extend_lens, self.seq_lens, TOPK, out=Outputs(*self.outputs))


def _vectorised(extend_lens: Tensor, seq_lens: Tensor, tokens: int) -> tuple[Tensor, ...]:
    """Make operations of torch none of which waits for the device."""
    ends = F.pad(torch.cumsum(extend_lens, 0, dtype=torch.int32), (1, 0))
    requests = torch.arange(len(extend_lens), dtype=torch.int32, device=extend_lens.device)
    request_index = torch.repeat_interleave(requests, extend_lens, output_size=tokens)
    first = seq_lens - extend_lens + 1 - ends[:-1]
    expanded = first[request_index] + torch.arange(tokens, dtype=torch.int32, device=extend_lens.device)
    return expanded, expanded.clamp(max=TOPK), ends, expanded - 1, request_index, ends[-1:]
