"""nccl-tests as an independent check: its all-reduce beside ours through NCCL, on the same machine in the same minutes.

    python benchmarks/gpu/nccl_tests.py --nccl-tests DIR -o check.json

Ours are measured by `commlib bench`. DIR holds its sources; all_reduce_perf is built there if it is not, against the
NCCL and headers of torch's wheel. What differs: it runs a thread per GPU in one process, ours a process per GPU; it
walks through one large buffer with one average over all iterations, ours rotates three and takes a median of blocks.
Its graph time includes the launches, over 50 calls a graph.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from run import shown_command

from commlib.timing import fingerprint

LEAST, MOST, FACTOR = "1K", "64M", 16
# Calls of a graph or of a loop, and launches of the graph, by size; after them one check of the values.
SHAPES = ((1 << 20, 50, 40), (1 << 25, 20, 20), (1 << 40, 10, 10))
OUT_OF_PLACE, IN_PLACE = 5, 9  # columns of a row: time, algbw, busbw, #wrong
TESTS_S = 60.0


def main() -> int:
    """Build if needed, measure both in both modes, and print the ratios."""
    arguments = _arguments()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        home = _nccl_home(Path(folder))
        program = _built(arguments.nccl_tests, home)
        for mode in ("graph", "eager"):
            ours = _ours(arguments, mode, Path(folder) / f"{mode}.json")
            for num_bytes, of_size in ours.items():
                rows += [
                    {"mode": mode, "bytes": num_bytes, **_theirs(program, home, arguments, mode, num_bytes), **of_size}
                ]
    print(_table(rows))
    if arguments.output:
        document = {
            "schema": "commlib.nccl_tests",
            "version": 1,
            "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "command": shown_command("benchmarks/gpu/nccl_tests.py"),
            "fingerprint": {
                **fingerprint(),
                "gpu": torch.cuda.get_device_name(0),
                "nccl": ".".join(map(str, torch.cuda.nccl.version())),
            },
            "ranks": arguments.ranks,
            "rows": rows,
        }
        arguments.output.write_text(json.dumps(document, indent=1) + "\n")
    return int(any(row.get("wrong") for row in rows) or not any("theirs_us" in row for row in rows))


def _ours(arguments: Any, mode: str, output: Path) -> dict[int, dict[str, float]]:
    """Measure commlib's plan and NCCL's call through it, with `commlib bench`."""
    command = [
        sys.executable,
        "-m",
        "commlib",
        "bench",
        "all_reduce",
        "-n",
        str(arguments.ranks),
        "--dtype",
        "bfloat16",
    ]
    command += ["-b", LEAST, "-e", MOST, "-f", str(FACTOR), "--in-place", "in", "--algorithms", "auto,nccl_direct"]
    command += ["--peers", "none", "--time", str(arguments.seconds), "--format", "json", "-o", str(output)]
    subprocess.run([*command, *(["--graph"] if mode == "graph" else [])], check=False, stdout=subprocess.DEVNULL)
    found: dict[int, dict[str, float]] = {}
    for row in json.loads(output.read_text())["rows"] if output.exists() else ():
        if "time_us" in row:
            names = {"auto_us": row["chosen"], "nccl_direct_us": row["algorithm"] == "nccl_direct"}
            here = {name: row["time_us"]["p50"] for name, fits in names.items() if fits}
            found.setdefault(row["size"], {}).update(here)
    return found


def _theirs(program: Path, home: Path, arguments: Any, mode: str, num_bytes: int) -> dict[str, Any]:
    """Run all_reduce_perf at one size and read its row."""
    calls, launches = next((calls, launches) for limit, calls, launches in SHAPES if num_bytes <= limit)
    command = [
        str(program),
        "-b",
        str(num_bytes),
        "-e",
        str(num_bytes),
        "-d",
        "bfloat16",
        "-o",
        "sum",
        "-c",
        "1",
        "-w",
        "5",
    ]
    command += ["-t", str(arguments.ranks), "-g", "1"]
    command += ["-n", str(calls), "-G", str(launches)] if mode == "graph" else ["-n", str(calls * 10)]
    try:
        done = subprocess.run(
            command, env=_environment(home), check=False, capture_output=True, text=True, timeout=TESTS_S
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"took more than {TESTS_S:g} s"}
    for line in done.stdout.splitlines():
        cells = line.split()
        if len(cells) > IN_PLACE + 3 and cells[0].isdigit() and int(cells[0]) == num_bytes:
            wrong = [cells[at + 3] for at in (OUT_OF_PLACE, IN_PLACE)]
            return {
                "theirs_us": float(cells[IN_PLACE]),
                "theirs_out_of_place_us": float(cells[OUT_OF_PLACE]),
                "wrong": sum(float(count) for count in wrong if count != "N/A"),
            }
    return {"failed": (done.stderr or done.stdout).strip()[-300:]}


def _nccl_home(folder: Path) -> Path:
    """Lay out torch's NCCL as nccl-tests' makefile expects it: include/, and lib/ with an unversioned name."""
    packages = importlib.util.find_spec("nvidia")
    places = [Path(place) / "nccl" for place in (packages.submodule_search_locations or ())] if packages else []
    nccl = next((place for place in places if (place / "lib/libnccl.so.2").exists()), None)
    if nccl is None:
        sys.exit("torch's wheel of NCCL is not here: no nvidia/nccl/lib/libnccl.so.2")
    home = folder / "nccl"
    (home / "lib").mkdir(parents=True)
    (home / "include").symlink_to(nccl / "include")
    for name in ("libnccl.so", "libnccl.so.2"):
        (home / "lib" / name).symlink_to(nccl / "lib/libnccl.so.2")
    return home


def _built(sources: Path, home: Path) -> Path:
    """Return all_reduce_perf, built for these GPUs."""
    build = sources.resolve() / "build"
    program = build / "all_reduce_perf"
    if not program.exists():
        major, minor = torch.cuda.get_device_capability(0)
        arch = f"{major}{minor}"
        settings = {
            "MPI": "0",
            "CUDA_HOME": str(_cuda_home()),
            "NCCL_HOME": str(home),
            "NVCC_GENCODE": f"-gencode=arch=compute_{arch},code=sm_{arch}",
            "BUILDDIR": str(build),
        }
        make = ["make", "-j8", "-C", str(sources.resolve() / "src"), *(f"{k}={v}" for k, v in settings.items())]
        done = subprocess.run([*make, str(program)], check=False, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"building nccl-tests failed:\n{done.stdout[-1000:]}\n{done.stderr[-3000:]}")
    return program


def _cuda_home() -> Path:
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    homes = [Path(nvcc).resolve().parents[1], Path("/usr/local/cuda")]
    return next((home for home in homes if (home / "include/cuda_runtime.h").exists()), homes[0])


def _environment(home: Path) -> dict[str, str]:
    """Put torch's NCCL first; the machine's own settings (no multicast) stay."""
    places = [str(home / "lib"), str(_cuda_home() / "lib64"), os.environ.get("LD_LIBRARY_PATH", "")]
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(place for place in places if place)}


def _table(rows: list[dict[str, Any]]) -> str:
    head = ("mode", "bytes", "nccl-tests", "nccl_direct", "ratio", "auto", "nccl-tests/auto")
    lines = [" ".join(cell.rjust(15) for cell in head)]
    for row in rows:
        theirs, direct, auto = (row.get(name) for name in ("theirs_us", "nccl_direct_us", "auto_us"))
        cells = [row["mode"], str(row["bytes"]), _us(theirs), _us(direct), _ratio(direct, theirs), _us(auto)]
        lines.append(" ".join(cell.rjust(15) for cell in (*cells, _ratio(theirs, auto))) + _note(row))
    return "\n".join(lines)


def _note(row: dict[str, Any]) -> str:
    wrong = f"  {row['wrong']:g} WRONG" if row.get("wrong") else ""
    return wrong + (f"  {row['failed']}" if "failed" in row else "")


def _us(time: float | None) -> str:
    return "–" if time is None else f"{time:.2f}"


def _ratio(time: float | None, by: float | None) -> str:
    return f"{time / by:.2f}" if time and by else "–"


def _arguments() -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nccl-tests", type=Path, required=True, metavar="DIR")
    parser.add_argument("--seconds", type=float, default=10.0, help="for ours, in each mode")
    parser.add_argument("--ranks", type=int, default=torch.cuda.device_count(), help="default: every GPU")
    parser.add_argument("-o", "--output", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
