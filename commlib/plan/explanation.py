"""Explanation: why an algorithm runs, and how far the plan that says so is from this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from commlib.counts import counted
from commlib.plan.rules import size_text

KEYS = ("backend", "device", "driver", "nccl", "cuda", "cpu", "cores", "kernel", "torch")
_SPELLED = {"nccl": "NCCL", "cuda": "CUDA", "cpu": "CPU"}


@dataclass(frozen=True)
class Match:
    """How many keys of a fingerprint are those of this machine, and which differ; a total of 0: there is none."""

    score: int = 0
    total: int = 0
    differences: Sequence[str] = ()

    @classmethod
    def of(cls, tuned: Mapping[str, Any], here: Mapping[str, Any]) -> Match:
        """Compare the fingerprint of a plan with this machine's, over the keys that the plan has."""
        keys = [key for key in KEYS if tuned.get(key) is not None]
        differing = [key for key in keys if tuned[key] != here.get(key)]
        texts = tuple(f"{_SPELLED.get(key, key)} {tuned[key]}, here {here.get(key, 'unknown')}" for key in differing)
        return cls(len(keys) - len(differing), len(keys), texts)

    @property
    def where(self) -> str:
        """Whether the plan was measured on this machine, as text."""
        if not self.total:
            return "not measured on this machine (`commlib tune` does)"
        return "measured elsewhere" if self.differences else "measured on a machine like this one"

    @property
    def description(self) -> str:
        """The same, with what differs."""
        return f"{self.where} ({self})" if self.differences else self.where

    def __str__(self) -> str:
        """Return it as explain prints it: match 5/6: NCCL 2.28.9, here 2.30.7."""
        if not self.total:
            return "no fingerprint"
        return f"match {self.score}/{self.total}" + (f": {'; '.join(self.differences)}" if self.differences else "")


@dataclass(frozen=True)
class Explanation:
    """Why an algorithm runs: what `explain` returns and the command line prints."""

    op: str
    num_bytes: int
    algorithm: str
    rule: str
    source: str
    low_bytes: int
    high_bytes: int | None
    gain: float | None = None
    runner_up: str | None = None
    digest: str = ""
    params: Mapping[str, int] = field(default_factory=dict)
    confidence: float | None = None
    ci_bytes: Sequence[int] | None = None  # where the upper end may lie
    low_ci_bytes: Sequence[int] | None = None  # where the lower end may lie
    match: str = ""
    measured: str = ""  # whether the plan was, on this machine
    pinned_by: str = ""
    remark: str = ""  # of the algorithm, whatever the plan
    sms: int = 0  # multiprocessors that it takes at most; 0: none
    curve: Sequence[tuple[int, float]] = ()  # multiprocessors, and how much longer on so many than without a limit
    spared: str = ""  # what an asynchronous call takes, and why
    passed: tuple[str, ...] = ()  # what stood before it and cannot serve such a call, and why

    def __str__(self) -> str:
        """Return lines a person can act on: what runs and why, then for which sizes, how much better, by which rule."""
        params = ", ".join(f"{key}={value}" for key, value in self.params.items())
        plan = "the shipped plan" if self.source.startswith("plans/") else f"the plan {self.source}"
        why = f"pinned by {self.pinned_by}" if self.pinned_by else f"chosen by {plan}, {self.measured}"
        origin = ", ".join(text for text in (f"plan {self.digest}", self.match) if text)
        lines = [
            f"{self.op} of {size_text(self.num_bytes)} runs {self.algorithm}: {why}",
            f"  for {self._sizes()}" + f", with {params}" * bool(params),
            *([] if self.pinned_by else [f"  {self._gain()}"]),
            f"  {self.rule} of {self.source} ({origin})",
        ]
        lines[2:2] = [f"  {text}" for text in (self.remark, self.spared, self._multiprocessors()) if text]
        lines[1:1] = [f"  passed over {reason}" for reason in self.passed]
        return "\n".join(lines)

    def _multiprocessors(self) -> str:
        if not self.sms:
            return ""
        measured = ", ".join(f"{sms} {slower:+.0%}" for sms, slower in self.curve)
        return f"takes up to {counted(self.sms, 'multiprocessor')}" + (
            f"; time on so many: {measured}" if measured else ""
        )

    def _sizes(self) -> str:
        ends = [] if self.low_bytes == 0 else [f"above {size_text(self.low_bytes - 1)}{_interval(self.low_ci_bytes)}"]
        if self.high_bytes is not None:
            ends.append(f"up to {size_text(self.high_bytes)}{_interval(self.ci_bytes)}")
        return f"sizes {', '.join(ends)}" if ends else "every size"

    def _gain(self) -> str:
        if self.gain is None or not self.runner_up:
            return "gain not measured"
        sure = "" if self.confidence is None else f" (confidence {self.confidence:.0%})"
        percent = round(100 * self.gain)
        than = f"{abs(percent)}% {'faster' if percent > 0 else 'slower'} than" if percent else "as fast as"
        return f"measured {than} {self.runner_up}{sure}"


def _interval(ends: Sequence[int] | None) -> str:
    return "" if ends is None else f" [{size_text(ends[0])}–{size_text(ends[1])}]"
