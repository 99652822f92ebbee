"""Search: which plan applies here, and why another one does not."""

from __future__ import annotations

import logging
import os
import platform
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from importlib import resources
from pathlib import Path
from typing import Any

import torch

from commlib import env
from commlib.collectives import COLLECTIVES, REDOPS, algorithm_names
from commlib.counts import counted
from commlib.plan.plan import Plan
from commlib.redops import DTYPES
from commlib.version import __version__

_LOG = logging.getLogger("commlib")


def slug(device: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-") or "unknown"


def user_path(backend: str, device: str, world: int) -> Path:
    """Return where this user's plan for a device and a number of ranks lies."""
    home = env.foreign("XDG_CONFIG_HOME") or "~/.config"
    return Path(home).expanduser() / "commlib" / "plans" / f"{backend}-{slug(device)}-{world}.json"


@cache
def shipped() -> dict[str, str]:
    folder = resources.files("commlib") / "plans"
    names = sorted(file.name for file in folder.iterdir() if file.name.endswith(".json"))
    plans = [name for name in names if ".samples" not in name]
    return {name.removesuffix(".json"): (folder / name).read_text(encoding="utf-8") for name in plans}


@cache
def shipped_plan(name: str) -> Plan:
    """Return one of the plans that come with commlib; one of a device has its backend's rules as its last ones."""
    plans = shipped()
    if name not in plans:
        raise ValueError(f"no plan {name!r} comes with commlib; there are {', '.join(plans)}")
    plan = Plan.parse(plans[name], f"plans/{name}.json")
    backend = plan.fingerprint.get("backend", name)
    return plan if backend == name else plan.completed(shipped_plan(backend))


def find(backend: str, asked: str | os.PathLike[str], world: int) -> Plan:
    """Return the plan of a file that is asked for, or of this machine: the user's, the device's, the backend's."""
    here = fingerprint(backend)
    if asked:
        return _fitting(Plan.load(asked), backend, here, world)
    for load in _files(backend, str(here.get("device", "")), world):
        try:
            plan = _fitting(load(), backend, here, world)
        except ValueError as error:
            _log_once(logging.WARNING, f"{error}; it is ignored")
            continue
        if fit := plan.fit.differences:
            score = f"{plan.fit.score}/{plan.fit.total}"
            _log_once(logging.INFO, f"plan {plan.source} was tuned for {'; '.join(fit)} (match {score})")
        return plan.completed(shipped_plan(backend))
    return shipped_plan(backend)


def _fitting(plan: Plan, backend: str, here: Mapping[str, Any], world: int) -> Plan:
    """Return a plan with its match, if it is for this backend, device and world and can run; else ValueError."""
    for key in ("backend", "device"):
        if key in plan.fingerprint and plan.fingerprint[key] != here.get(key):
            raise ValueError(
                f"plan {plan.source} was tuned for {key} {plan.fingerprint[key]}, but this is {here.get(key)}; tune "
                "here with `commlib tune`, or remove the fingerprint from the file to use it anyway"
            )
    if plan.rules and not plan.rules_of(world):
        raise ValueError(
            f"plan {plan.source} has no rule for {counted(world, 'rank')}; tune with `commlib tune -n {world}`"
        )
    check_names(plan, backend)
    return plan.fitted(here)


def _files(backend: str, device: str, world: int) -> Iterator[Callable[[], Plan]]:
    """Yield the files that are there for this machine, the most specific one first."""
    try:
        path = user_path(backend, device, world)
        if path.exists():
            yield partial(Plan.load, path)
    except (OSError, RuntimeError) as error:  # no access, or a user without a home
        _log_once(logging.WARNING, f"no plan of this user's is looked for: {error}")
    name = f"{backend}-{slug(device)}"
    if name in shipped():
        yield partial(shipped_plan, name)


@cache
def _log_once(level: int, text: str) -> None:
    """Log a text once, however many communicators the process makes."""
    _LOG.log(level, text)


def usable(backend: str) -> dict[str, list[str]]:
    """Return the algorithms that can run under a plan's name, by collective; under no name of ours, all there are."""
    COLLECTIVES.check()
    if backend not in shipped():
        return {op: [algorithm.name for algorithm in spec.algorithms] for op, spec in COLLECTIVES.items()}
    backends = {algorithm.backend for spec in COLLECTIVES.values() for algorithm in spec.algorithms}
    if backend in backends:
        return algorithm_names(backend)
    # A variant, such as GPUs without symmetric memory: what its shipped plan runs is all that it has.
    rules = shipped_plan(backend).rules
    return {op: sorted({e.algorithm for r in rules if r.op == op for e in r.ranges}) for op in COLLECTIVES}


def check_names(plan: Plan, backend: str) -> None:
    """Raise a ValueError for the first name in a plan that is not known, with file, rule and the valid names."""
    algorithms, on = usable(backend), f" on {backend}" if backend else ""
    for rule in plan.rules:
        keys = {"op": tuple(algorithms), "dtype": ("*", *DTYPES), "redop": ("*", *REDOPS)}
        for key, valid in keys.items():
            if (value := getattr(rule, key)) not in valid:
                raise ValueError(f"{rule.where()}: no {key} {value!r}; there are {', '.join(valid)}")
        for part, entries in (("ranges", rule.ranges), ("fallback", rule.fallback)):
            for at, entry in enumerate(entries):
                named = (entry.algorithm, *(point.algorithm for point in entry.curve))
                unknown = next((name for name in named if name not in algorithms[rule.op]), None)
                if unknown is not None:
                    names = ", ".join(algorithms[rule.op]) or "none"
                    where, lacks = rule.where(part, at), f"{rule.op} has no algorithm {unknown!r}"
                    raise ValueError(f"{where}: {lacks}{on}; it has {names}, and what {env.PLUGINS.name} adds")


# --- the machine and its settings, which a plan is looked up by and every result has ----------------------------------


def fingerprint(backend: str = "") -> dict[str, Any]:
    """Describe the machine and the software: a figure without them is worth nothing.

    With a backend it is also what a plan for that backend is measured and looked up by.
    """
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    cpu = models[0] if models else platform.processor()
    # What runs on CPUs alone depends on no driver, and must not start one.
    gpu = _gpu() if (not backend or backend.startswith("nccl")) and torch.cuda.is_available() else {}
    return {
        **({"backend": backend} if backend else {}),
        "device": gpu.get("gpu") or cpu or platform.machine() or "unknown",
        **gpu,
        "cpu": cpu,
        "cores": len(models) or None,
        "machine": platform.machine(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "commlib": __version__,
        "settings": env.settings(),
    }


def _gpu() -> dict[str, Any]:
    info = Path("/proc/driver/nvidia/version")
    return {
        "gpu": torch.cuda.get_device_name(),
        "gpus": torch.cuda.device_count(),
        "driver": driver_of(info.read_text(encoding="utf-8")) if info.exists() else None,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if torch.distributed.is_nccl_available() else None,
        "cuda": torch.version.cuda,
    }


def driver_of(text: str) -> str | None:
    """Return the version in what NVIDIA's kernel module says of itself."""
    # NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build …
    match = re.search(r"Kernel Module\b.*?\s(\d+(?:\.\d+)+)\s", text)
    return match[1] if match else None
