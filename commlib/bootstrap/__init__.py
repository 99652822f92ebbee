"""Who started the ranks, and how they find each other: one row for each launcher.

torchrun       torchrun, `commlib run`, `commlib bench -n`, or RANK and WORLD_SIZE set by hand
mpi            mpiexec of Open MPI or MPICH, or an mpi4py communicator
slurm          srun
explicit       the program itself: rank, size and address of init()
process_group  a torch process group that exists already: its store

All exchange bytes over a store (store.py): those of one host over one in memory, which rank 0 gives them at a unix
socket (local_world.py), others over torch's (tcp.py).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from commlib import env
from commlib.bootstrap import mpi
from commlib.bootstrap.launchers import (
    SLURM,
    TORCHRUN,
    Launcher,
    ProcessGroupWorld,
    explicit_rank,
    first_number,
)
from commlib.bootstrap.tcp import rendezvous
from commlib.bootstrap.world import Identity, SingleWorld, World
from commlib.counts import counted
from commlib.errors import Unsupported

__all__ = ["BOOTSTRAPS", "SingleWorld", "World", "connect", "explicit_rank"]

# The innermost launcher comes first: torchrun inside mpiexec inside srun.
BOOTSTRAPS: dict[str, Launcher] = {"torchrun": TORCHRUN, "mpi": mpi.MPI, "slurm": SLURM}


def connect(
    bootstrap: object = "auto", timeout_s: float = 300.0, explicit: tuple[Identity, tuple[str, int]] | None = None
) -> World:
    """Return the world of this process; `bootstrap` names it, or is a group of torch or MPI; or it is `explicit`."""
    if explicit is not None:
        who, address = explicit
        return rendezvous("address", address, who, timeout_s)
    if not isinstance(bootstrap, str):
        return _adopt(bootstrap, timeout_s)
    name = env.BOOTSTRAP.get() if bootstrap == "auto" else bootstrap
    if name == "auto":
        name = find(os.environ)
    elif name != "single":
        _require(name, os.environ)
    world = SingleWorld() if name == "single" else BOOTSTRAPS[name].connect(timeout_s)
    if name == "mpi" and world.size == 1 and BOOTSTRAPS["mpi"].detect(os.environ) is None and (outer := around()):
        world.close()
        raise Unsupported(
            f"bootstrap 'mpi': MPI knows one rank, but {outer[0]} started {counted(outer[1], 'rank')}; "
            f"start them with `{mpi.MPI.start} …`, or leave bootstrap at 'auto'"
        )
    return world


def find(environ: Mapping[str, str]) -> str:
    """Return the name of the innermost launcher that left its variables, or 'single'."""
    for name, launcher in BOOTSTRAPS.items():
        size = launcher.detect(environ)
        if size is not None:
            if name == "torchrun":
                _refuse_contradiction(size, environ)
            return name
    return "single"


def around() -> tuple[str, int] | None:
    """Return the command that started several processes like this one, and how many."""
    for name, launcher in BOOTSTRAPS.items():
        if name == "torchrun" and not os.environ.get("TORCHELASTIC_RUN_ID"):
            continue  # a shell or a container may have its variables
        with suppress(ValueError):  # half set: no launcher's
            if (size := launcher.detect(os.environ) or 1) > 1:
                return launcher.start.split()[0], size
    return None


def _refuse_contradiction(size: int, environ: Mapping[str, str]) -> None:
    """Compare torchrun's variables, which may be set by hand, with those of mpiexec and srun, if these are set, too."""
    for name in ("mpi", "slurm"):
        if name == "slurm" and environ.get("TORCHELASTIC_RUN_ID"):
            continue  # one agent of torchrun for each task
        outer = BOOTSTRAPS[name]
        command, announced = outer.start.split()[0], outer.detect(environ)
        if announced is None or (name == "slurm" and size > announced and size % announced == 0):  # each task spawns
            continue
        ranks = counted(size, "rank")
        wrong = f"torchrun announces {ranks}, {command} {announced}"
        if announced == size:
            if first_number(environ, *outer.ranks) == first_number(environ, "RANK"):
                continue
            wrong = f"torchrun and {command} announce {ranks} each, but give this process different numbers"
        raise ValueError(f"ambiguous environment: {wrong}; set COMMLIB_BOOTSTRAP=torchrun or COMMLIB_BOOTSTRAP={name}")


def _require(name: str, environ: Mapping[str, str]) -> None:
    if name not in BOOTSTRAPS:
        names = ", ".join(["auto", *BOOTSTRAPS, "single"])
        raise ValueError(f"bootstrap {name!r} is not one of {names}, a torch process group or an mpi4py communicator")
    # MPI may be named here although nothing shows it: we do not know the variables of all its launchers.
    if BOOTSTRAPS[name].detect(environ) is None and name != "mpi":
        raise ValueError(
            f"bootstrap is {name!r}, but its variables are not set; start the ranks with "
            f"`{BOOTSTRAPS[name].start} …`, or leave bootstrap at 'auto'"
        )


def _adopt(group: Any, timeout_s: float) -> World:
    if type(group).__module__.split(".")[0] == "mpi4py":
        return mpi.join(group, timeout_s)
    if hasattr(group, "get_group_store"):
        return ProcessGroupWorld(group, timeout_s)
    raise TypeError(
        f"bootstrap must be a name, a torch process group or an mpi4py communicator; got {type(group).__name__}"
    )
