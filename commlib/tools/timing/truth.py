"""Truth: inputs that every rank knows of every rank, and what a collective must make of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from commlib.collectives.spec import Call, Collective, Fold
    from commlib.tools.timing.candidate import Run

PERIOD = 4093  # elements after which inputs repeat; a prime, so that a misplaced block never looks right
POISON = -0x5B


class Truth:
    """Every rank's input and this rank's expected output: small whole numbers, exact in every type."""

    def __init__(self, collective: Collective, call: Call, fold: Fold) -> None:
        inputs = [
            _values(collective.shapes(of_rank)[0], of_rank)
            for of_rank in (replace(call, rank=rank) for rank in range(call.size))
        ]
        self.input = inputs[call.rank]
        self.expected = collective.reference(call, inputs, fold)
        self.share = collective.close(call.dtype) if collective.close else 0.0

    def wrong(self, x: torch.Tensor, out: torch.Tensor, run: Run) -> int:
        """Make the call once on fresh inputs and poisoned outputs, and count the wrong elements."""
        poison(out)
        x.copy_(self.input)
        run()
        if self.expected is None:
            return 0
        expected = self.expected.view(-1).to(out.device)
        return far(out, expected, self.share) if self.share else differing(out, expected)


def _values(elements: int, call: Call) -> torch.Tensor:
    generator = torch.Generator().manual_seed(call.rank)
    low, high = (0, 2) if call.dtype == torch.bool else (1, 5)
    tile = torch.randint(low, high, (PERIOD,), generator=generator).to(call.dtype)
    return tile.repeat(-(-elements // PERIOD))[:elements]


def bits(x: torch.Tensor) -> torch.Tensor:
    """View elements as whole numbers: every type can be poisoned and compared, and bits are what counts."""
    return x.view({1: torch.int8, 2: torch.int16, 4: torch.int32}.get(x.element_size(), torch.int64))


def poison(out: torch.Tensor) -> torch.Tensor:
    bits(out).fill_(POISON)
    return out


def far(found: torch.Tensor, expected: torch.Tensor, share: float) -> int:
    """Count the elements that are farther from what is expected than a share of it."""
    return int(((found.double() - expected.double()).abs() > share * expected.double().abs()).count_nonzero())


def differing(found: torch.Tensor, expected: torch.Tensor) -> int:
    """Count the elements whose bits differ; another shape or type is wrong in every element."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return expected.numel()
    return int((bits(found) != bits(expected)).count_nonzero())
