"""MPI: the launcher on PATH against the library that mpi4py loads, and two ranks that must see each other."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

from commlib.tools.cli.doctor.finding import Finding, broken, missing, ok

INSTALL = "pip install mpi4py mpich"
REMEDY = "use the mpirun of the MPI that mpi4py loads"
TRIAL_S = 30.0
TRIES = 2  # MPICH's launcher fails now and then where it is started several times at once
ONLY = "needed only to start ranks through MPI, or to measure beside it"
# What a launcher's --version and a library's version text have in them, by vendor.
VENDORS = {
    "Open MPI": ("open mpi", "open-mpi", "openrte", "prrte"),
    "MPICH": ("hydra", "mpich"),
    "Intel MPI": ("intel",),
}
LIBRARY = "from mpi4py import MPI; print(MPI.Get_library_version())"


def launcher_and_library() -> Finding:
    """Start two ranks of mpi4py with the mpirun that a user would get, and say who does not fit whom."""
    beside = Path(sys.executable).with_name("mpirun")
    mpirun = str(beside) if beside.exists() else shutil.which("mpirun")
    has_package = importlib.util.find_spec("mpi4py") is not None
    if mpirun is None or not has_package:
        lacks = " and ".join([*(["no mpi4py"] * (not has_package)), *(["no mpirun on PATH"] * (mpirun is None))])
        return missing(f"{lacks}; {ONLY}", INSTALL)
    code, said = _ran(sys.executable, "-c", LIBRARY)
    if code:
        return broken(
            f"mpi4py is here, but cannot load an MPI library: {said[-1]}",
            f"{INSTALL}, or add the folder of libmpi to LD_LIBRARY_PATH",
        )
    library, launcher = _vendor(said[0]), _vendor(" ".join(_ran(mpirun, "--version")[1]))
    if library != launcher:
        detail = f"mismatched: mpirun is {launcher}'s ({mpirun}), but mpi4py loads {_named(said[0])}"
        return broken(detail, f"put the mpirun of {library} first on PATH, or install one MPI alone: {INSTALL}")
    return _two_ranks(mpirun, launcher)


def _two_ranks(mpirun: str, vendor: str) -> Finding:
    flags = ["--oversubscribe", "--allow-run-as-root"] if vendor == "Open MPI" else []
    for _ in range(TRIES):
        code, said = _ran(mpirun, *flags, "-n", "2", sys.executable, "-m", "mpi4py.bench", "helloworld")
        if not code:
            break
    if code:
        return broken(f"{vendor} ({mpirun}) cannot start 2 ranks: {_reason(said)}", REMEDY)
    if sum(" of 2 " in line for line in said) != 2:
        return broken(f"{vendor} ({mpirun}) started 2 ranks that do not see each other: {said[0]}", REMEDY)
    return ok(f"{vendor} ({mpirun}): 2 ranks see each other")


def _vendor(text: str) -> str:
    return next((name for name, words in VENDORS.items() if any(word in text.lower() for word in words)), "another MPI")


def _named(version: str) -> str:
    """Return the name and number that a library's version begins with."""
    return " ".join(version.partition(",")[0].replace("Version:", "").split())


def _reason(said: list[str]) -> str:
    """Return the line of a launcher's complaint that says what happened; Hydra's is followed by advice."""
    return next((line for line in said if "EXIT STRING" in line), said[-1])


def _ran(*command: str) -> tuple[int, list[str]]:
    """Run a command; return its exit code and the lines that it printed, the errors last, never none."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TRIAL_S)
    except subprocess.TimeoutExpired:
        return 1, [f"no answer within {TRIAL_S:g} s"]
    except OSError as error:
        return 1, [str(error)]
    lines = [line.strip("\0 ") for line in f"{done.stdout}\n{done.stderr}".splitlines() if line.strip("\0 ")]
    return done.returncode, lines or [f"exit code {done.returncode}"]
