"""The world srun made: one task of the step is one rank."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from commlib.bootstrap.launcher import announced, identity, number, port
from commlib.bootstrap.local_world import meet
from commlib.bootstrap.tcp import connect_store
from commlib.bootstrap.unix_rendezvous import Place
from commlib.bootstrap.world import World

START = "srun -n N"
RANKS = ("SLURM_PROCID",)
PORTS = range(15000, 32000)  # below the ports Linux hands out by itself (32768 and up)


def detect(environ: Mapping[str, str]) -> int | None:
    """Return the step's number of tasks; SLURM_NTASKS does not count, salloc sets it without any srun."""
    if not environ.get("SLURM_STEP_NUM_TASKS"):
        return None  # a batch script has SLURM_PROCID, but is no step
    also = ("SLURM_STEP_NODELIST", "SLURM_JOB_ID", "SLURM_STEP_ID")
    return announced(environ, "srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", also)


def connect(timeout_s: float) -> World:
    """Join the other tasks of the step; past one host, through a store that task 0 serves on the step's first host."""
    here = identity(os.environ, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")
    if os.environ.get("SLURM_STEP_NUM_NODES") == "1":
        step = "step {SLURM_JOB_ID}.{SLURM_STEP_ID}".format_map(os.environ)
        return meet("slurm", Place(step, step), here, timeout_s)
    return connect_store("slurm", address(os.environ), here, timeout_s)


def address(environ: Mapping[str, str]) -> tuple[str, int]:
    """Return where task 0 serves: all tasks derive the same, other steps another port."""
    host = environ.get("MASTER_ADDR") or first_host(environ["SLURM_STEP_NODELIST"])
    step = number(environ, "SLURM_JOB_ID") * 257 + number(environ, "SLURM_STEP_ID")
    derived = PORTS[step % len(PORTS)]
    return host, port(environ, "MASTER_PORT") if environ.get("MASTER_PORT") else derived


def first_host(nodelist: str) -> str:
    """Return the first host of Slurm's list: 'gpu[07-09,12],cpu1' names gpu07 first."""
    first = re.split(r",(?![^\[]*\])", nodelist)[0]
    return re.sub(r"\[([^-,\]]+)[^\]]*\]", r"\1", first)
