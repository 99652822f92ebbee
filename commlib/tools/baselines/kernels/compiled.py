"""torch.compile as a peer: for each shape of its own while that takes no longer than allowed, then for all shapes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from commlib.tools.baselines.kernels.case import Arguments, Candidate, missing

LABEL = "torch.compile"
STATIC_S = 150.0  # in all; a shape takes 1 to 5 s


class Compiler:
    """Makes candidates of plain functions; `off` says why it does not."""

    def __init__(self, off: str = "") -> None:
        self.off = off
        self.spent_s = 0.0
        self.shapes = 0
        self.dynamic = False

    def __call__(self, function: Callable[..., object], arguments: Arguments) -> Candidate:
        """Return the candidate that calls the compiled function; it compiles when it is called first."""
        if self.off:
            return missing(LABEL, self.off)
        if not self.dynamic:
            torch._dynamo.reset()  # a function is compiled for eight shapes, and then, silently, no more
        compiled = torch.compile(function, dynamic=self.dynamic, fullgraph=True)
        return Candidate(LABEL, lambda inputs: partial(compiled, *arguments(inputs)), compiles=True)

    def took(self, seconds: float) -> None:
        """Count what a first call took."""
        self.spent_s += seconds
        self.shapes += 1
        self.dynamic = self.spent_s > STATIC_S

    def notes(self) -> list[str]:
        """Say what it did, if anything."""
        if self.off or not self.shapes:
            return []
        also = f"; for any shape after {STATIC_S:.0f} s" if self.dynamic else ""
        return [f"{LABEL}: {self.shapes} shapes compiled in {self.spent_s:.1f} s{also}"]
