"""Launchers: who a rank is stands in its environment, or in arguments of init(), and says where the ranks meet."""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, SupportsIndex

from commlib import env
from commlib.bootstrap.local_world import Place, meet
from commlib.bootstrap.store import StoreWorld
from commlib.bootstrap.tcp import connect_store, rendezvous
from commlib.bootstrap.world import Identity, World
from commlib.counts import counted


class Launcher(NamedTuple):
    """What starts the ranks of a job.

    `detect` returns the world size that it announces, None without it, ValueError if it is half set; `connect(timeout)`
    joins the other ranks. `ranks` are variables that number them where the job is started inside another launcher's.
    """

    start: str
    detect: Callable[[Mapping[str, str]], int | None]
    connect: Callable[[float], World]
    ranks: tuple[str, ...] = ()


# --- variables --------------------------------------------------------------------------------------------------------


def number(environ: Mapping[str, str], name: str) -> int:
    """Read a whole number; the message leaves the value out, so that every rank says the same sentence."""
    try:
        return int(environ[name])
    except ValueError:
        raise ValueError(f"{name} is not a whole number; correct it or unset it") from None


def first_number(environ: Mapping[str, str], *names: str) -> int | None:
    return next((number(environ, name) for name in names if environ.get(name)), None)


def _port(environ: Mapping[str, str], name: str) -> int:
    value = number(environ, name)
    if not 1 <= value <= 65535:
        raise ValueError(f"{name} must be a port from 1 to 65535; correct it or unset it")
    return value


def announced(
    environ: Mapping[str, str], launcher: str, rank: str, size: str, also: tuple[str, ...] = ()
) -> int | None:
    """Return the world size a launcher announces, None if it is not there, ValueError if half of it is."""
    if not environ.get(rank) and not environ.get(size):
        return None
    names = (rank, size, *also)
    missing = [name for name in names if not environ.get(name)]
    if missing:
        present = [name for name in names if environ.get(name)]
        raise ValueError(
            f"{launcher}'s variables are half set: {', '.join(present)} set, {', '.join(missing)} missing; "
            f"set all of them, unset all of them, or name another bootstrap in COMMLIB_BOOTSTRAP"
        )
    total = number(environ, size)
    if total < 1 or not 0 <= number(environ, rank) < total:
        raise ValueError(f"{launcher} started {size}={total} ranks, so {rank} must be from 0 to {total - 1}")
    return total


def _identity(rank: str, size: str, local_rank: str) -> Identity:
    """Read which rank this process is from variables that `announced` has checked."""
    who = Identity(number(os.environ, rank), number(os.environ, size), first_number(os.environ, local_rank))
    if who.local_rank is not None and not 0 <= who.local_rank < who.size:
        raise ValueError(
            f"{local_rank} must be from 0 to {who.size - 1} among {counted(who.size, 'rank')}; correct it or unset it"
        )
    return who


# --- RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, set by torchrun, `commlib run` or by hand -------------------------


def _detect_torchrun(environ: Mapping[str, str]) -> int | None:
    return announced(environ, "torchrun", "RANK", "WORLD_SIZE", ("MASTER_ADDR", "MASTER_PORT"))


def _connect_torchrun(timeout_s: float) -> World:
    """Join the other ranks; past one host, through the store that torch.distributed uses, too."""
    address = (os.environ["MASTER_ADDR"], _port(os.environ, "MASTER_PORT"))
    together = os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]
    who = _identity("RANK", "WORLD_SIZE", "LOCAL_RANK")
    return rendezvous("commlib run" if env.JOB.get() else "torchrun", address, who, timeout_s, together=together)


TORCHRUN = Launcher("torchrun --nproc-per-node N", _detect_torchrun, _connect_torchrun, ("RANK",))

# --- srun: one task of the step is one rank ---------------------------------------------------------------------------

PORTS = range(15000, 32000)  # below the ports Linux hands out by itself (32768 and up)


def _detect_slurm(environ: Mapping[str, str]) -> int | None:
    """Return the step's number of tasks; SLURM_NTASKS does not count, salloc sets it without any srun."""
    if not environ.get("SLURM_STEP_NUM_TASKS"):
        return None  # a batch script has SLURM_PROCID, but is no step
    also = ("SLURM_STEP_NODELIST", "SLURM_JOB_ID", "SLURM_STEP_ID")
    return announced(environ, "srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", also)


def _connect_slurm(timeout_s: float) -> World:
    """Join the other tasks of the step; past one host, through a store that task 0 serves on the step's first host."""
    who = _identity("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")
    if os.environ.get("SLURM_STEP_NUM_NODES") == "1":
        step = "step {SLURM_JOB_ID}.{SLURM_STEP_ID}".format_map(os.environ)
        return meet("slurm", Place(step, step), who, timeout_s)
    return connect_store("slurm", slurm_address(os.environ), who, timeout_s)


def slurm_address(environ: Mapping[str, str]) -> tuple[str, int]:
    """Return where task 0 serves: all tasks derive the same, other steps another port."""
    host = environ.get("MASTER_ADDR") or first_host(environ["SLURM_STEP_NODELIST"])
    step = number(environ, "SLURM_JOB_ID") * 257 + number(environ, "SLURM_STEP_ID")
    return host, _port(environ, "MASTER_PORT") if environ.get("MASTER_PORT") else PORTS[step % len(PORTS)]


def first_host(nodelist: str) -> str:
    """Return the first host of Slurm's list: 'gpu[07-09,12],cpu1' names gpu07 first."""
    first = re.split(r",(?![^\[]*\])", nodelist)[0]
    return re.sub(r"\[([^-,\]]+)[^\]]*\]", r"\1", first)


SLURM = Launcher("srun -n N", _detect_slurm, _connect_slurm, ("SLURM_PROCID",))

# --- the program itself: init(rank=, size=, address=), as workers of Ray or Dask know it; a process group -------------


def explicit_rank(
    bootstrap: object, rank: int | None, size: int | None, address: str | None
) -> tuple[Identity, tuple[str, int]] | None:
    """Return rank, size and address, checked, if init() got them in place of a bootstrap."""
    values = {"rank": rank, "size": size, "address": address}
    missing = [name for name, value in values.items() if value is None]
    if len(missing) == len(values):
        return None
    if missing:
        present = ", ".join(f"{name}={value!r}" for name, value in values.items() if value is not None)
        raise ValueError(f"init got {present}, but not {', '.join(missing)}; pass rank, size and address, or none")
    if bootstrap != "auto":
        raise ValueError("init got rank, size and address, and a bootstrap; pass one or the other")
    for name in ("rank", "size"):
        if not isinstance(values[name], SupportsIndex):
            raise TypeError(f"{name} is of type {type(values[name]).__name__}, but must be an int")
    total, number = operator.index(values["size"]), operator.index(values["rank"])  # type: ignore[arg-type]  # checked
    if total < 1 or not 0 <= number < total:
        raise ValueError(f"rank is {number} and size {total}, but size must be 1 or more, and rank from 0 to size - 1")
    return Identity(number, total), _address(address)


def _address(address: object) -> tuple[str, int]:
    if not isinstance(address, str):
        raise TypeError(f"address is of type {type(address).__name__}, but must be a str: 'host:port'")
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not host or "/" in host or not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise ValueError(
            f"address is {address!r}, but must be 'host:port' or 'tcp://host:port' with a port from 1 to 65535"
        )
    return host, int(port)


class ProcessGroupWorld(StoreWorld):
    """The ranks of a torch process group that the program made: over its store, as a late collective breaks a group."""

    def __init__(self, group: Any, timeout_s: float = 300.0) -> None:
        self.group = group
        who = Identity(group.rank(), group.size(), first_number(os.environ, "LOCAL_RANK"))
        super().__init__("process_group", group.get_group_store(), who, timeout_s)
        self.store = self._store
