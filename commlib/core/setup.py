"""What the ranks settle before a communicator exists: settings, plan, cores, and who is in it after a split."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from commlib import env
from commlib.backends import BACKENDS
from commlib.backends.base import Options
from commlib.bootstrap.world import World
from commlib.collectives import COLLECTIVES
from commlib.errors import CommError, PlanMismatch, limits_of
from commlib.plan import Plan
from commlib.plan.plan import HEAD
from commlib.plan.search import check_names, find, shipped_plan, usable
from commlib.version import __version__

T = TypeVar("T")
_LOG = logging.getLogger("commlib")
LIMITS: Mapping[str, env.Variable[Any]] = {
    "timeout_s": env.TIMEOUT_S,
    "max_bytes": env.MAX_BYTES,
    "checked": env.CHECK,
    "max_sms": env.MAX_SMS,
}
"""Arguments of init(), and the variables that stand in for those left out."""


def settings(
    backend: Any,
    plan: str | os.PathLike[str] | Plan,
    *,
    cpus: bool = False,
    **limits: Any,
) -> tuple[Options, str]:
    """Check the arguments of init() as their variables are, before anything starts; return them, and the backend."""
    if not isinstance(plan, (str, os.PathLike, Plan)):
        raise TypeError(f"plan must be 'auto', a path or a Plan; got {type(plan).__name__}")
    if backend is None:
        raise TypeError("backend must be a name or an NCCL communicator; got None")
    name = env.BACKEND.get() if backend == "auto" else backend
    if isinstance(name, str) and name not in ("auto", *BACKENDS):
        raise ValueError(f"backend={name!r} is not known; use 'auto', {', '.join(map(repr, BACKENDS))}")
    nccl_comm = None if isinstance(name, str) else backend
    checked = {limit: variable.resolve(limits.pop(limit, None), limit) for limit, variable in LIMITS.items()}
    options = Options(**checked, cpus=cpus, nccl_comm=nccl_comm, **limits)
    return options, name if nccl_comm is None else "nccl"


def check_same_settings(world: World, options: Options, backend: str) -> None:
    """Compare what must be equal on all ranks; all of them fail together, with the same table."""
    mine = {
        "plugins": "; ".join(COLLECTIVES.plugins) or "none",
        "commlib version": __version__,
        "backend": backend,
        "max_bytes": options.max_bytes,
        "checked mode": options.checked,
        "max_sms": options.max_sms,
        env.GUARD.name: env.GUARD.get(),
        env.ISA.name: env.ISA.get(),  # levels differ in which NaN they keep
    }
    everyone = world.exchange(mine | {"faults": COLLECTIVES.faults}, options.timeout_s)
    for rank, other in enumerate(everyone):
        for fault in other["faults"]:
            raise ValueError(f"rank {rank}: {fault}")
    for key in mine:
        same = f"{env.PLUGINS.name}, and the same files behind it" if key == "plugins" else "settings"
        values = [other[key] for other in everyone]
        _check_equal(values, f"ranks disagree on {key}", f"start every rank with the same {same}")


def _check_equal(values: Sequence[object], what: str, remedy: str) -> None:
    if any(value != values[0] for value in values):
        table = ", ".join(f"rank {rank}: {value}" for rank, value in enumerate(values))
        raise PlanMismatch(f"{what} ({table}); {remedy}")


def choose_plan(
    world: World, backend: str, plan: str | os.PathLike[str] | Plan, timeout_s: float, others: Sequence[str] = ()
) -> Plan:
    """Rank 0's plan is everyone's; a plan passed as an object must be the same on every rank.

    With communicators of `others`, backends too, a plan or an algorithm that only one of those has is not for this one.
    """
    chosen: Plan | None = None
    passed, packed, failure = plan.digest if isinstance(plan, Plan) else "", "", ""
    if world.rank == 0:
        try:
            wanted = find_plan(backend, plan, world.size, others)
            chosen = override(wanted, backend, others)
            packed, passed = chosen.packed(), passed or wanted.digest
        except ValueError as error:
            failure = str(error)
    everyone = world.exchange([packed, passed, failure], timeout_s)
    packed, digest, failure = everyone[0]
    if failure:
        raise ValueError(failure)
    digests = [passed or digest for _, passed, _ in everyone]
    _check_equal(digests, "ranks were given different plans", "pass the same plan= on every rank")
    return chosen if chosen is not None else Plan.unpacked(packed)


def find_plan(backend: str, plan: str | os.PathLike[str] | Plan, world: int, others: Sequence[str] = ()) -> Plan:
    """Return the plan that rank 0 takes for a plan= argument, before COMMLIB_ALGORITHM."""
    asked = env.PLAN.get() if plan == "auto" else plan
    if asked and others and (other := _meant_for(asked, backend, others)):
        _LOG.info("the plan that was asked for is for %s; %s takes that of this machine", other, backend)
        asked = ""
    if isinstance(asked, Plan):
        return asked
    wanted = find(backend, asked, world)
    rest = unplanned(backend) if plan == "auto" or not asked else None
    return wanted.completed(rest) if rest and rest.rules else wanted


def _meant_for(asked: str | os.PathLike[str] | Plan, backend: str, others: Sequence[str]) -> str:
    """Return which other backend a plan is for; empty: it is for this one, or for none of them."""
    wanted = asked if isinstance(asked, Plan) else Plan.load(asked)
    for name in (backend, *others):
        if wanted.fingerprint.get("backend", name).partition("_")[0] == name.partition("_")[0]:
            with suppress(ValueError):
                check_names(wanted, name)
                return "" if name == backend else name
    return ""


def unplanned(backend: str) -> Plan:
    """Return rules for collectives of which the shipped plan says nothing: the first of their rows that always runs."""
    planned = {rule.op for rule in shipped_plan(backend).rules}
    rules = []
    for op, collective in COLLECTIVES.items():
        always = [a.name for a in collective.rows(backend.partition("_")[0]).values() if not a.needs_arena]
        if op not in planned and always:
            rules.append({"op": op, "ranges": [{"algorithm": always[0]}]})
    return Plan({**HEAD, "rules": rules}, "the collectives' tables")


def override(plan: Plan, backend: str, others: Sequence[str] = ()) -> Plan:
    """Return the plan with COMMLIB_ALGORITHM on top: for experiments, and for bisecting a bug."""
    algorithms, elsewhere = usable(backend), [usable(name) for name in others]
    wanted = {
        op: algorithm
        for op, algorithm in env.ALGORITHM.get().items()
        if algorithm in algorithms.get(op, ()) or not any(algorithm in names.get(op, ()) for names in elsewhere)
    }
    if not wanted or plan.pinned == wanted:  # a split takes over a plan that has them already
        return plan
    for op, algorithm in wanted.items():
        if op not in algorithms:
            raise ValueError(f"{env.ALGORITHM.name}: no collective {op!r}; there are {', '.join(algorithms)}")
        if algorithm not in algorithms[op]:
            known = ", ".join(algorithms[op])
            raise ValueError(f"{env.ALGORITHM.name}: {op} has no algorithm {algorithm!r} on {backend}; it has {known}")
    pins = ", ".join(f"{op} to {algorithm}" for op, algorithm in wanted.items())
    _LOG.warning("%s pins %s", env.ALGORITHM.name, pins)
    return plan.overridden(wanted)


# --- split ------------------------------------------------------------------------------------------------------------


_Part = tuple[bool, bytes, str]  # whether this rank is still at work, what it says, and why it failed


class Subworld(World):
    """Some ranks of a parent Communicator, which stands above this layer.

    A round is a collective of the parent, so that no message of the program's is ever taken for one of ours.
    """

    name = "split"

    def __init__(self, parent: Any, members: list[int]) -> None:
        self._parent = parent
        self._members = members
        self.rank = members.index(parent.rank)
        self.size = len(members)
        self.local_rank, self.address = parent.local_rank, parent.world.address
        self.infos = [parent.world.infos[member] for member in members]
        self.device = parent.device.type

    def all_gather(self, data: bytes, timeout_s: float) -> list[bytes]:
        """Exchange among the members while they make their communicator; the parent's own deadline holds."""
        everyone: list[_Part] = self._parent.all_gather_object((True, data, ""))
        parts = [everyone[member] for member in self._members]
        for member, (at_work, _, failure) in zip(self._members, parts, strict=True):
            if not at_work:
                raise CommError(f"split: rank {member} could not make its communicator: {failure}")
        return [data for _, data, _ in parts]

    def failures(self, failure: str, timeout_s: float) -> list[str]:
        """As of World, by the numbers of the parent's ranks, which the program knows so far."""
        texts = zip(self._members, self.exchange(failure, timeout_s), strict=True)
        return [f"split: rank {member} could not make its communicator: {text}" for member, text in texts if text]


def split(parent: Any, color: int | None, key: int, make: Callable[[World], T]) -> T | None:
    """Make this rank's communicator, and stay with the parent's rounds until every rank has its own."""
    table = parent.all_gather_object((color, key))
    made: Any = None
    failure: Exception | None = None
    if color is not None:
        members = sorted((r for r in range(parent.size) if table[r][0] == color), key=lambda r: (table[r][1], r))
        try:
            with limits_of(f"split on rank {parent.rank}"):
                made = make(Subworld(parent, members))
        except Exception as error:
            failure = error
    try:
        done: _Part = (False, b"", str(failure or ""))
        while any(at_work for at_work, _, _ in parent.all_gather_object(done)):
            pass
    except BaseException:
        if made is not None:
            made.close()
        if failure is None:
            raise
    if failure is not None:
        raise failure
    return made  # type: ignore[no-any-return]
