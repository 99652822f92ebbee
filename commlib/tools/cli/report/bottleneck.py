"""Bottleneck: what bounds a call, by a rule over figures of the same run; where they do not tell, it says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from commlib.tools.report.figures import fitted, percent_text, ratio_text
from commlib.tools.report.measured import ENOUGH, outcome

CLOSE = 0.8  # of the floor: nothing else takes long
HALF = 0.5  # of the time: less than that, the bytes do not explain it
NEAR = 2.0  # times the shortest call of the series
BYTES, WORK, FIXED, CALL, OPEN = "bandwidth", "arithmetic", "fixed cost", "our code", "not known"
RULE = (
    "All figures are of one run; where they do not tell, the bottleneck is not known.",
    f"{BYTES}: the floor, which moves as many bytes and does nothing else, takes at least {CLOSE:.0%} of the call's "
    "time. It may take longer than the call, which may make better use of caches.",
    f"{WORK}: the same, where the floor is what does as many operations.",
    f"{CALL}: another library makes the same call at least {ENOUGH:g} times as fast, beyond doubt.",
    f"{FIXED}: the call takes at most {NEAR:g} times as long as the smallest call of its series, or as a floor of as "
    f"many bytes, and its bytes need less than {HALF:.0%} of its time at the best rate of such calls and larger ones.",
    f"{OPEN}: none of these.",
)
TRY = {
    BYTES: "Move fewer bytes: a smaller element type, or a fused call that reads and writes them once. "
    "The call itself has little left to give.",
    WORK: "Do fewer operations, or the same in a smaller element type. The call itself has little left to give.",
    FIXED: "Make fewer and larger calls; on GPUs, replay them in a CUDA graph.",
    CALL: "Use the library that is faster for such calls, and see what its way has that ours lacks.",
    OPEN: "Look at one call: `perf record` on a CPU, `--ncu` on a GPU.",
}


@dataclass(frozen=True)
class Call:
    """One call of ours, and the figures of the same run that say what bounds it; times are in microseconds."""

    series: str
    name: str
    time_us: float
    num_bytes: float | None = None
    work: str = ""  # operations, where they count
    rate: str = ""
    floor_us: float | None = None  # of what moves as many bytes
    floor_of: str = BYTES  # or WORK: of what does as many operations
    need_us: float | None = None  # what its bytes take at the best rate of calls that are no smaller
    least_us: float | None = None  # of the smallest call of the series
    beside: str = ""  # the best of the others
    versus: Mapping[str, Any] | None = None  # how many times as long it takes: ratio, low, high

    @property
    def share(self) -> float | None:
        """The floor's share of the time."""
        return None if self.floor_us is None else self.floor_us / self.time_us

    @property
    def outcome(self) -> str:
        """Whether ours is faster or slower than the best of the others, by enough and beyond doubt."""
        return outcome(self.versus)


def bottleneck(call: Call) -> tuple[str, str]:
    """Return what bounds a call, and how that is known."""
    share, need = call.share, call.need_us
    needs_half = need is not None and need > HALF * call.time_us
    floor = "" if share is None else f"the floor takes {fitted(call.floor_us, 8)} µs, {percent_text(share)} % of it"
    if share is not None and share >= CLOSE and needs_half:
        return call.floor_of, floor
    if call.outcome == "slower":
        assert call.versus is not None
        return CALL, f"{call.beside} takes {ratio_text(call.versus['ratio'])} of its time"
    near = call.least_us is not None and call.time_us <= NEAR * call.least_us
    if (near or (share is not None and share >= CLOSE)) and need is not None and not needs_half:
        return FIXED, f"{_fixed(call)}; its bytes need {fitted(need, 8)} µs"
    return OPEN, floor or "no floor is measured"


def _fixed(call: Call) -> str:
    if call.least_us is None or call.time_us > NEAR * call.least_us:
        return f"a floor of as many bytes takes {fitted(call.floor_us, 8)} µs, too"
    if call.time_us == call.least_us:
        return "the smallest call"
    return f"the smallest call takes {fitted(call.least_us, 8)} µs"


def tries(calls: Sequence[Call]) -> list[str]:
    """Return what to try, for each bottleneck of these calls."""
    names: dict[str, dict[str, None]] = {}
    for call in calls:
        names.setdefault(bottleneck(call)[0], {})[call.name] = None
    return [f"{what} ({_first(list(of))}): {TRY[what]}" for what, of in names.items()]


def _first(names: Sequence[str], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return "; ".join(names[:most]) + more
