"""What is kept on disk: the cache of compiled kernels, and the plan that init() takes."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path

from commlib import env
from commlib.counts import counted
from commlib.tools.cli.doctor.finding import Finding, broken, main_job, ok, warning

_LOG = logging.getLogger("commlib")
STALE_DAYS = 30


def cache() -> Finding:
    """Return what the cache holds, after writing into it."""
    from commlib.build.cache import cache_dir, check_writable

    remedy = f"{env.CACHE_DIR.name}=FOLDER names another; without one each process compiles GPU kernels again"
    try:
        folder = cache_dir()
        check_writable(folder)
    except RuntimeError as error:
        return warning(f"no folder: {error}", remedy)
    except OSError as error:
        return warning(f"{folder} cannot be written: {error.strerror}", remedy)
    return _content(folder)


def _content(folder: Path) -> Finding:
    # A file is named by the digest of what it was made from, so only its use shows whether it is of any.
    found = [file.stat() for file in os.scandir(folder) if file.is_file()]
    used_last = time.time() - STALE_DAYS * 86400
    stale = [file for file in found if max(file.st_atime, file.st_mtime) < used_last]
    detail = f"{folder} can be written, and holds {_files(found)}"
    if not stale:
        return ok(detail)
    return ok(f"{detail}; {_files(stale)} of it not used for {STALE_DAYS} days", "delete these at any time")


def plan() -> Finding:
    """Return the plan that init() would take here, and how well it fits this machine."""
    import torch

    from commlib.core.setup import find_plan

    job = main_job()
    world = max(torch.cuda.device_count(), 1) if job == "nccl" else 2
    said = _Said(logging.WARNING)
    _LOG.addHandler(said)
    try:
        found = find_plan(job, "auto", world)
    except ValueError as error:  # COMMLIB_PLAN names it
        return broken(str(error), f"correct or unset {env.PLAN.name}")
    finally:
        _LOG.removeHandler(said)
    fit = str(found.fit) if found.fit.total else "not measured on this machine"
    detail = f"{found.source} for {counted(world, 'rank')}: {fit}"
    measured = found.fit.total and not found.fit.differences
    remedy = f"commlib tune -n {world}" if world > 1 and not measured else ""  # one rank has nothing to choose
    return warning("; ".join([*said.texts, detail]), remedy) if said.texts else ok(detail, remedy)


class _Said(logging.Handler):
    """Collects what is logged instead of showing it."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def _files(found: Sequence[os.stat_result]) -> str:
    size = sum(file.st_size for file in found) / (1 << 20)
    return f"{counted(len(found), 'file')} ({size:.1f} MiB)"
