"""The table of `commlib bench`: nccl-tests' columns, one line per algorithm, for wide and narrow terminals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from commlib.cli.bench_job import Group, Line
    from commlib.plan import Explanation
    from commlib.timing import Measurement

WIDE = 120  # columns from which both halves fit on a line
TYPES = {"float32": "float", "float16": "half", "float64": "double", "float8_e4m3fn": "f8e4m3", "float8_e5m2": "f8e5m2"}
HALF = ("time", "algbw", "busbw", "#wrong")
UNITS = ("(us)", "(GB/s)", "(GB/s)", "")
FASTER = 1.1  # what is not the plan's choice is named if it wins by this much: less is noise


class Table:
    """Turns groups into lines of at most `width` columns."""

    def __init__(self, width: int) -> None:
        self.wide = width >= WIDE

    def head(self, group: Group) -> list[str]:
        """Return what stands above the first group of a collective, type and reduction."""
        call, name = group.call, group.collective.name
        title = f"# {name}"
        if not self.wide:
            root = f", root {call.root}" if group.collective.rooted else ""
            title += f", {_type(group)}{', ' + call.redop if group.collective.reduces else ''}{root}"
            names = _narrow(("size", "algorithm", "form", *HALF, "torch"))
            units = _narrow(("(B)", "", "", *UNITS, "(x)"))
            return ["#", title, "#" + names[1:], "#" + units[1:]]
        names = _wide(("size", "count", "type", "redop", "root", "algorithm", *2 * HALF, "torch"))
        units = _wide(("(B)", "(elements)", "", "", "", "", *2 * UNITS, "(x)"))
        halves = f"{'':55}{'out-of-place':^29}{'in-place':^28}"
        return ["#", title, *("#" + line[1:] for line in (halves, names, units))]

    def body(self, group: Group) -> list[str]:
        """Return the lines of one call."""
        torch = next((line for line in group.lines if line.label == "torch" and line.times_s()), None)
        shown = [line for line in group.lines if line.times_s()]
        return [text for line in shown for text in self._lines(group, line, torch)]

    def _lines(self, group: Group, line: Line, torch: Line | None) -> Iterator[str]:
        label = line.label + ("*" if line.chosen else "")
        if not self.wide:
            for place, result in line.found.items():
                if result.times_s:
                    rival = torch.found.get(place) if torch else None
                    figures = _figures(group, result)
                    form = "in" if place else "out"
                    yield _narrow((_size(group.num_bytes), label, form, *figures, _factor(rival, result)))
            return
        collective, call = group.collective, group.call
        redop = call.redop if collective.reduces else "none"
        root = call.root if collective.rooted else -1
        place = next(place for place, result in line.found.items() if result.times_s)
        factor = _factor(torch.found.get(place) if torch else None, line.found[place])
        halves = [cell for place in (False, True) for cell in _half(group, line.found.get(place))]
        size, count = str(group.num_bytes), str(call.count)
        yield _wide((size, count, _type(group), redop, str(root), label, *halves, factor))


def _wide(cells: Sequence[str]) -> str:
    size, count, kind, redop, root, algorithm, *rest = cells
    lead = f"{size:>10} {count:>10} {kind:>8} {redop:>5} {root:>4} {algorithm:<14}"
    widths = (7, 6, 6, 6, 7, 6, 6, 6, 5)
    return lead + " " + " ".join(f"{cell:>{width}}" for cell, width in zip(rest, widths, strict=True))


def _narrow(cells: Sequence[str]) -> str:
    size, algorithm, form, *rest = cells
    widths = (9, 7, 7, 6, 6)
    figures = " ".join(f"{cell:>{width}}" for cell, width in zip(rest, widths, strict=True))
    return f"{size:>10}  {algorithm:<15} {form:<4} {figures}"


def _half(group: Group, result: Measurement | None) -> tuple[str, ...]:
    return _figures(group, result) if result and result.times_s else ("-", "-", "-", "-")


def _figures(group: Group, result: Measurement) -> tuple[str, str, str, str]:
    algorithm, bus = group.bandwidths(result.median_s)
    wrong = "N/A" if result.wrong is None else str(result.wrong)
    return _digits(result.median_s * 1e6), _digits(algorithm), _digits(bus), wrong


def _digits(value: float) -> str:
    """Return about four digits: the rest is noise."""
    return f"{value:.2f}" if value < 100 else f"{value:.1f}" if value < 10_000 else f"{value:.0f}"


def _factor(rival: Measurement | None, result: Measurement) -> str:
    if rival is None or rival is result or not rival.times_s:
        return "-"
    ratio = rival.median_s / result.median_s
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}"


def _type(group: Group) -> str:
    name = str(group.call.dtype).removeprefix("torch.")
    return TYPES.get(name, name)


def _size(num_bytes: int) -> str:
    for unit, scale in (("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)):
        if num_bytes >= scale and num_bytes % scale == 0:
            return f"{num_bytes // scale}{unit}"
    return str(num_bytes)


def choices(groups: Sequence[Group]) -> list[str]:
    """Say for one collective which algorithms the plan picks, by which rules, and where another one won here."""
    return [f"# {line}" for line in (*_chosen(groups), *_faster(groups), *_skipped(groups))]


def _chosen(groups: Sequence[Group]) -> Iterator[str]:
    for placement in sorted({placement for group in groups for placement in group.why}):
        runs: list[tuple[Explanation, int, int]] = []
        for group in groups:
            why, size = group.why[placement], group.num_bytes
            if runs and (runs[-1][0].algorithm, runs[-1][0].rule) == (why.algorithm, why.rule):
                runs[-1] = (why, min(runs[-1][1], size), max(runs[-1][2], size))
            else:
                runs.append((why, size, size))
        yield f"plan, {placement} tensors: " + "; ".join(_reason(*run) for run in runs)


def _reason(why: Explanation, low: int, high: int) -> str:
    sizes = _size(low) if low == high else f"{_size(low)}–{_size(high)}"
    gain = f", measured {why.gain:.0%} faster than {why.runner_up}" if why.gain is not None and why.runner_up else ""
    return f"{why.algorithm} at {sizes} ({why.rule}{gain})"


def _faster(groups: Sequence[Group]) -> Iterator[str]:
    for group in groups:
        for chosen in (line for line in group.lines if line.chosen and line.times_s()):
            rivals = [line for line in group.lines if line.placement == chosen.placement and line.times_s()]
            best = min(rivals, key=lambda line: line.times_s()[0])
            ratio = chosen.times_s()[0] / best.times_s()[0]
            if ratio >= FASTER:
                yield f"here {best.label} beat the plan's {chosen.label} by {ratio:.2f}x at {_size(group.num_bytes)}"


def _skipped(groups: Sequence[Group]) -> Iterator[str]:
    reasons: dict[str, None] = {}
    for group in groups:
        for line in group.lines:
            for place, result in line.found.items():
                form = "in place" if place else "out of place"
                if result.skipped:
                    reasons[f"skipped {line.label} {form}: {result.skipped}"] = None
    yield from reasons


def summary(groups: Sequence[Group]) -> dict[str, Any]:
    """Return nccl-tests' last two lines: wrong elements, and bus bandwidth of the plan's choices and of torch."""
    wrong = sum(line.wrong() for group in groups for line in group.lines)
    return {"wrong": wrong, "busbw": _mean_busbw(groups, True), "torch_busbw": _mean_busbw(groups, False)}


def _mean_busbw(groups: Sequence[Group], ours: bool) -> float | None:
    values = [
        group.bandwidths(seconds)[1]
        for group in groups
        if group.num_bytes
        for line in group.lines
        if (line.chosen and line.placement == "plain" if ours else line.label == "torch")
        for seconds in line.times_s()
    ]
    return sum(values) / len(values) if values else None


def foot(groups: Sequence[Group]) -> list[str]:
    """Return the closing lines."""
    found = summary(groups)
    lines = ["#", f"# Out of bounds values : {found['wrong']} {'FAILED' if found['wrong'] else 'OK'}"]
    if found["busbw"] is not None:
        beside = f" (torch {found['torch_busbw']:.3f})" if found["torch_busbw"] is not None else ""
        lines.append(f"# Avg bus bandwidth    : {found['busbw']:.3f}{beside}")
    return lines
