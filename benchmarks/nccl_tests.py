"""nccl-tests as an independent check: its all-reduce next to ours, in the same minutes.

    python benchmarks/nccl_tests.py DIR/build/all_reduce_perf -o check.json

Ours are measured by `commlib bench`. What differs: it runs a thread per GPU in one process, ours a process per GPU; it
walks through one large buffer with one average over all iterations, ours rotates three and takes a median of blocks.
Its graph time includes the launches, over 50 calls a graph.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from written import command_line, head, write

from commlib.tools.bench.result import measured
from commlib.tools.report.formats import fitted

LEAST, MOST, FACTOR = "1K", "64M", 16
# Calls of a graph or of a loop, and launches of the graph, by size; after them one check of the values.
SHAPES = ((1 << 20, 50, 40), (1 << 25, 20, 20), (1 << 40, 10, 10))
OUT_OF_PLACE, IN_PLACE = 5, 9  # columns of a row: time, algbw, busbw, #wrong
TESTS_S = 60.0


def main() -> int:
    """Build if needed, measure both in both modes, and print the ratios."""
    parser = command_line(__doc__)
    parser.add_argument("program", type=Path, help="all_reduce_perf, built with torch's NCCL (README.md)")
    parser.add_argument("--seconds", type=float, default=10.0, help="for ours, in each mode")
    parser.add_argument("--ranks", type=int, default=torch.cuda.device_count(), help="default: every GPU")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for mode in ("graph", "eager"):
            ours = _ours(options, mode, Path(folder) / f"{mode}.json")
            for num_bytes, of_size in ours.items():
                theirs = _theirs(options.program, options.ranks, mode, num_bytes)
                rows.append({"mode": mode, "bytes": num_bytes, **theirs, **of_size})
    print(_table(rows))
    write(options.output, {**head("nccl_tests", options.ranks), "rows": rows})
    return int(any(row.get("wrong") for row in rows) or not any("theirs_us" in row for row in rows))


def _ours(options: Any, mode: str, output: Path) -> dict[int, dict[str, float]]:
    """Measure commlib's plan and NCCL's call through it, with `commlib bench`."""
    command = [sys.executable, "-m", "commlib", "bench", "all_reduce", "-n", str(options.ranks)]
    command += ["--dtype", "bfloat16", "-b", LEAST, "-e", MOST, "-f", str(FACTOR), "--in-place", "in"]
    command += ["--algorithms", "auto,nccl_direct", "--peers", "none", "--time", str(options.seconds)]
    command += ["--format", "json", "-o", str(output), *(["--graph"] if mode == "graph" else [])]
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
    found: dict[int, dict[str, float]] = {}
    for row in measured(json.loads(output.read_text())["rows"] if output.exists() else []):
        of_size = found.setdefault(row["size"], {})
        if row["chosen"]:
            of_size["auto_us"] = row["time_us"]["p50"]
        if row["algorithm"] == "nccl_direct":
            of_size["nccl_direct_us"] = row["time_us"]["p50"]
    return found


def _theirs(program: Path, ranks: int, mode: str, num_bytes: int) -> dict[str, Any]:
    """Run all_reduce_perf at one size and read its row."""
    calls, launches = next((calls, launches) for limit, calls, launches in SHAPES if num_bytes <= limit)
    command = [str(program), "-b", str(num_bytes), "-e", str(num_bytes), "-d", "bfloat16", "-o", "sum"]
    command += ["-c", "1", "-w", "5", "-t", str(ranks), "-g", "1"]
    command += ["-n", str(calls), "-G", str(launches)] if mode == "graph" else ["-n", str(calls * 10)]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=TESTS_S)
    except subprocess.TimeoutExpired:
        return {"failed": f"took more than {TESTS_S:g} s"}
    for line in done.stdout.splitlines():
        cells = line.split()
        if len(cells) > IN_PLACE + 3 and cells[0].isdigit() and int(cells[0]) == num_bytes:
            wrong = sum(float(cells[at + 3]) for at in (OUT_OF_PLACE, IN_PLACE) if cells[at + 3] != "N/A")
            times = {"theirs_us": cells[IN_PLACE], "theirs_out_of_place_us": cells[OUT_OF_PLACE]}
            return {**{name: float(time) for name, time in times.items()}, "wrong": wrong}
    return {"failed": (done.stderr or done.stdout).strip()[-300:]}


def _table(rows: list[dict[str, Any]]) -> str:
    cells = [("mode", "bytes", "nccl-tests", "nccl_direct", "ratio", "auto", "nccl-tests/auto", "")]
    for row in rows:
        theirs, direct, auto = (row.get(name) for name in ("theirs_us", "nccl_direct_us", "auto_us"))
        note = f"{row['wrong']:g} WRONG" if row.get("wrong") else row.get("failed", "")
        figures = (theirs, direct, _ratio(direct, theirs), auto, _ratio(theirs, auto))
        cells.append((row["mode"], str(row["bytes"]), *(fitted(figure, 15) for figure in figures), note))
    return "\n".join(" ".join(cell.rjust(15) for cell in line) for line in cells)


def _ratio(time: float | None, by: float | None) -> float | None:
    return time / by if time and by else None


if __name__ == "__main__":
    sys.exit(main())
