"""What the ranks settle before a communicator exists: settings, plan, cores."""

from __future__ import annotations

import json
import os

from commlib import __version__
from commlib.backends.base import Options
from commlib.bootstrap.world import World
from commlib.errors import PlanMismatch
from commlib.plan import Plan


def pin(world: World) -> None:
    """Give each rank a core of its own, round robin over those the process may use."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[world.local_rank % len(cores)]})


def agree(world: World, options: Options, backend: str) -> None:
    """Compare what must be equal on all ranks; all of them fail together, with the same table."""
    mine = {
        "commlib version": __version__,
        "backend": backend,
        "max_bytes": options.max_bytes,
        "checked mode": options.checked,
    }
    everyone = [json.loads(d) for d in world.all_gather(json.dumps(mine).encode(), options.timeout_s)]
    for key in mine:
        values = [other[key] for other in everyone]
        if any(value != values[0] for value in values):
            table = ", ".join(f"rank {r}: {value}" for r, value in enumerate(values))
            raise PlanMismatch(f"ranks disagree on {key} ({table}); start every rank with the same settings")


def choose_plan(world: World, backend: str, plan: str | os.PathLike[str] | Plan, timeout_s: float) -> Plan:
    """Rank 0's bytes are everyone's; a plan passed as an object must be the same on every rank."""
    text, source, failure = "", "", ""
    if world.rank == 0:
        try:
            if isinstance(plan, Plan):
                chosen = plan
            else:
                chosen = Plan.auto(backend) if plan == "auto" else Plan.load(plan)
            text, source = chosen.text, chosen.source
        except ValueError as error:
            failure = str(error)
    reply = world.broadcast(json.dumps([text, source, failure]).encode(), 0, timeout_s)
    text, source, failure = json.loads(reply)
    if failure:
        raise ValueError(failure)
    agreed = plan if isinstance(plan, Plan) else Plan.parse(text, source)
    digests = [d.decode() for d in world.all_gather(agreed.digest.encode(), timeout_s)]
    agreed.agree(digests)
    return agreed
