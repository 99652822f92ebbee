"""Search: which plan file applies here, and why one that was found does not."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commlib import env

if TYPE_CHECKING:
    from commlib.plan.plan import Plan

_LOG = logging.getLogger("commlib")
Accept = Callable[["Plan"], None]


def slug(device: str) -> str:
    """Return a device's name as it stands in the names of files: nvidia-h200."""
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-") or "unknown"


def user_path(backend: str, device: str, world: int) -> Path:
    """Return where this user's plan for a device and a number of ranks is kept."""
    home = env.foreign("XDG_CONFIG_HOME") or "~/.config"
    return Path(home).expanduser() / "commlib" / "plans" / f"{backend}-{slug(device)}-{world}.json"


@cache
def shipped() -> dict[str, str]:
    """Return the text of each plan that comes with commlib, by name."""
    folder = resources.files("commlib") / "plans"
    files = [file for file in folder.iterdir() if file.name.endswith(".json") and ".samples" not in file.name]
    return {file.name.removesuffix(".json"): file.read_text(encoding="utf-8") for file in sorted(files, key=_name)}


@cache
def shipped_plan(name: str) -> Plan:
    """Return one of the plans that come with commlib; one of a device has its backend's rules as its last ones."""
    from commlib.plan.plan import Plan

    plans = shipped()
    if name not in plans:
        raise ValueError(f"no plan {name!r} comes with commlib; there are {', '.join(plans)}")
    plan = Plan.parse(plans[name], f"plans/{name}.json")
    backend = plan.document.get("fingerprint", {}).get("backend", name)
    return plan if backend == name else plan.completed(shipped_plan(backend))


def find(
    backend: str, world: int | None, fingerprint: Mapping[str, Any] | None = None, accept: Accept | None = None
) -> Plan:
    """Return the first that applies: COMMLIB_PLAN, the user's, the shipped one of the device, that of the backend."""
    here = dict(fingerprint or _fingerprint(backend)) if world is not None or env.PLAN.is_set() else {}
    if env.PLAN.is_set():
        from commlib.plan.plan import Plan

        return explicit(Plan.load(env.PLAN.get()), here, world, accept)
    default = shipped_plan(backend)
    for source, load in _found(backend, str(here.get("device", "")), world):
        try:
            plan = explicit(load(), here, world, accept)
        except ValueError as error:
            _say(logging.WARNING, f"{error}; it is ignored")
            continue
        if fit := plan.fit.differences:
            score = f"{plan.fit.score}/{plan.fit.total}"
            _say(logging.INFO, f"plan {source} was tuned for {'; '.join(fit)} (match {score})")
        return plan.completed(default)
    return default


def explicit(plan: Plan, here: Mapping[str, Any], world: int | None, accept: Accept | None = None) -> Plan:
    """Return a plan with its match, if it is for this backend, device and world and can run; else ValueError."""
    tuned = plan.document.get("fingerprint", {})
    for key in ("backend", "device"):
        if key in tuned and tuned[key] != here.get(key):
            raise ValueError(
                f"plan {plan.source} was tuned for {key} {tuned[key]}, here is {here.get(key)}; tune here with "
                "`commlib tune`, or take its fingerprint out to use it as it is"
            )
    if world is not None and plan.rules and not plan.rules_of(world):
        raise ValueError(f"plan {plan.source} has no rule for {world} ranks; tune with `commlib tune -n {world}`")
    if accept is not None:
        accept(plan)
    return plan.fitted(here)


def _found(backend: str, device: str, world: int | None) -> Iterator[tuple[str, Callable[[], Plan]]]:
    """Yield the files that are there for this machine, the most special one first."""
    from commlib.plan.plan import Plan

    if world is None:
        return
    try:
        path = user_path(backend, device, world)
        if path.exists():
            yield str(path), lambda: Plan.load(path)
    except (OSError, RuntimeError) as error:  # no access, or a user without a home
        _say(logging.WARNING, f"no plan of this user's is looked for: {error}")
    name = f"{backend}-{slug(device)}"
    if name in shipped():
        yield f"plans/{name}.json", lambda: shipped_plan(name)


def _fingerprint(backend: str) -> dict[str, Any]:
    from commlib.timing.machine import fingerprint

    return fingerprint(backend)


def _name(file: Any) -> str:
    return str(file.name)


@cache
def _say(level: int, text: str) -> None:
    """Log a text once, however many communicators the process makes."""
    _LOG.log(level, text)
