"""Case: one call to measure, with inputs every rank knows of every rank and what must come out, to the bit."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from commlib.collectives import COLLECTIVES, Call, Collective

DTYPE = torch.bfloat16
_PERIOD = 4093  # elements after which inputs repeat; a prime, so that a misplaced block never looks right


@dataclass(frozen=True)
class Case:
    """One collective of one size, as nccl-tests counts it, on this rank."""

    op: str
    num_bytes: int
    rank: int
    size: int
    device: torch.device

    @property
    def collective(self) -> Collective:
        """The contract of the collective."""
        return COLLECTIVES[self.op]

    @cached_property
    def call(self) -> Call:
        """The call of so many bytes."""
        one = self.collective.num_bytes(Call(self.rank, self.size, 1, DTYPE))
        return Call(self.rank, self.size, max(1, self.num_bytes // one), DTYPE)

    @property
    def elements(self) -> tuple[int, int]:
        """Elements of (input, output) on this rank."""
        return self.collective.shapes(self.call)


class Truth:
    """This rank's input and expected output: small whole numbers, exact in bf16 in any order of addition."""

    def __init__(self, case: Case) -> None:
        self.case = case
        elements_in, elements_out = case.elements
        tiles = [_tile(rank, case.device) for rank in range(case.size)]
        self.input = _spread(tiles[case.rank], elements_in)
        if case.op == "all_gather":
            self.expected = torch.cat([_spread(tile, elements_in) for tile in tiles])
            return
        total = torch.stack([tile.float() for tile in tiles]).sum(0).to(DTYPE)
        self.expected = _spread(total, elements_in)
        if case.op == "reduce_scatter":
            self.expected = self.expected[case.rank * elements_out : (case.rank + 1) * elements_out]

    def wrong(self, out: torch.Tensor, calls_in_place: int = 1) -> int:
        """Count wrong elements after one call, or after several in place, each of which multiplies by the ranks.

        Exact for a power of two of ranks: then only the exponent grows.
        """
        expected = self.expected
        if calls_in_place > 1:
            expected = expected * float(self.case.size ** (calls_in_place - 1))
        return int((out.view(torch.int16) != expected.view(torch.int16)).count_nonzero())


def poison(out: torch.Tensor) -> None:
    """Make every element a NaN: an output that nobody writes must not look right."""
    out.view(torch.int16).fill_(0x7FA5)


def _tile(rank: int, device: torch.device) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank)
    return torch.randint(1, 5, (_PERIOD,), generator=generator).to(device=device, dtype=DTYPE)


def _spread(tile: torch.Tensor, elements: int) -> torch.Tensor:
    return tile.repeat(-(-elements // _PERIOD))[:elements]
