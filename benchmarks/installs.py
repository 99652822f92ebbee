"""Compare two installs of commlib: every collective by the plan, in alternating processes, as ratios of medians.

    pip wheel . --no-deps -w A; git checkout …; pip wheel . --no-deps -w B       # a wheel of each
    pip install --no-deps --target before A/*.whl; pip install --no-deps --target after B/*.whl
    PYTHONPATH=after python benchmarks/installs.py before after -o installs.json # where no other is installed

A cell is an operation, a size, an algorithm, and where its tensors lie. Its ratio is the median over the turns of the
second install's medians, over that of the first. The ratio of one small call is noise; the mean is not.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from written import command_line, head, write

OPS = "all_reduce all_gather reduce_scatter all_to_all broadcast reduce gather scatter barrier send_recv"
Cell = tuple[Any, ...]


def turn(install: Path, words: list[str], folder: Path) -> dict[Cell, float]:
    """Measure once by an install, in processes of their own; return the median of each cell."""
    output = folder / "turn.json"
    command = [sys.executable, "-P", "-m", "commlib", "bench", *words, "-o", str(output)]
    environment = os.environ | {"PYTHONPATH": str(install.resolve())}
    subprocess.run(command, env=environment, cwd=folder, stdout=subprocess.DEVNULL, check=True)
    rows = json.loads(output.read_text(encoding="utf-8"))["rows"]
    keys = ("op", "size", "algorithm", "placement", "in_place")
    return {tuple(row[key] for key in keys): row["time_us"]["p50"] for row in rows}


def main() -> int:
    """Take turns, print the mean and the largest ratios, and write all."""
    parser = command_line(__doc__)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("-n", "--ranks", type=int, default=2)
    parser.add_argument("-e", "--max-bytes", default="4M")
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--time", default="6", help="seconds of a turn")
    options = parser.parse_args()
    words = [*OPS.split(), "-n", str(options.ranks), "-b", "8", "-e", options.max_bytes, "-f", "8"]
    words += ["--peers", "none", "--algorithms", "auto", "--time", options.time]
    times: tuple[list[dict[Cell, float]], list[dict[Cell, float]]] = ([], [])
    installs = list(enumerate((options.before, options.after)))
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.turns):
            for which, install in installs if number % 2 == 0 else reversed(installs):
                times[which].append(turn(install, words, Path(folder)))
    rows = []
    for cell in times[0][0].keys() & times[1][0].keys():
        before, after = (statistics.median(each[cell] for each in turns) for turns in times)
        names = dict(zip(("op", "bytes", "algorithm", "placement", "in_place"), cell, strict=True))
        rows.append({**names, "before_us": before, "after_us": after, "ratio": round(after / before, 4)})
    rows.sort(key=lambda row: -row["ratio"])
    mean = statistics.geometric_mean(row["ratio"] for row in rows)
    print(f"{len(rows)} cells, {options.turns} turns: geometric mean of after / before {mean:.3f}; the largest ratios:")
    for row in rows[:8]:
        print(f"{row['ratio']:6.3f}  {row['op']} of {row['bytes']} B by {row['algorithm']}, {row['placement']}")
    write(options.output, {**head("installs", options.ranks), "turns": options.turns, "mean": mean, "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
