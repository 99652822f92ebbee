"""hangs.py --graphs: two ranks replay CUDA graphs of calls on two communicators, and one of them does something wrong.

The ranks live on from fault to fault, with new communicators and graphs for each. Without a GPU a graph is a list of
calls, which its replay makes one after the other.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from graph_faults import CAPTURED, GRAPHS, KINDS, POLL_S, Plan, be_rank, captures, first_difference, places, warm_up
from written import head, write

from commlib.debug.findings import Finding, findings_lines, findings_of
from commlib.debug.jobs import Job, moments
from commlib.debug.record import records_of
from commlib.tools.testing import Ranks

STUCK_S, APART_S, LONG_S = 1.3, 0.7, 60.0
WARM_S, END_S, BROKEN_S = 240.0, 15.0, 30.0


def said(folder: Path, name: str) -> Any:
    """Return what a rank has left, when it has."""
    deadline = time.monotonic() + BROKEN_S
    while not (folder / name).exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"no rank came to {name}")
        time.sleep(POLL_S)
    return json.loads((folder / name).read_text(encoding="utf-8"))


def looked(pids: list[int]) -> tuple[Job, Job, list[Finding]]:
    """Do as the command does."""
    ((before, job),) = moments([[record for pid in pids for record in records_of(pid)]], APART_S)
    return before, job, findings_of(job, before)


def one_fault(ranks: Ranks, plan: Plan, on_gpu: bool) -> dict[str, Any]:
    """Break a job, look at it, and say whether it was told what happened."""
    started = time.monotonic()
    if len(ranks.pids) < 2:
        ranks.restart()
    pids = ranks.pids
    with TemporaryDirectory() as name:
        folder = Path(name)
        handle = ranks.start(be_rank, plan, name)
        try:
            bases = [tuple(base) for base in said(folder, f"bases.{1 - plan.culprit}")]
            if plan.kind not in CAPTURED:
                said(folder, f"broke.{plan.culprit}")
            if plan.kind.startswith("SIG"):
                os.kill(pids[plan.culprit], getattr(signal, plan.kind))
            time.sleep(STUCK_S)
            before, job, findings = looked(pids)
            job.ask_stacks({pid for finding in findings for pid in finding.threads})
            lines = findings_lines(job, before, findings)
            right = judged(plan, findings, lines, bases, on_gpu)
        finally:
            ended(ranks, handle, plan, pids, folder)
    row = {"kind": plan.kind, "seed": plan.seed, "right": right, "seconds": round(time.monotonic() - started, 2)}
    return {**row, "said": lines, "expected": [] if right else expected(plan, bases, on_gpu)}


def ended(ranks: Ranks, handle: Any, plan: Plan, pids: list[int], folder: Path) -> None:
    """Have the ranks give up the job; those that cannot are replaced."""
    if plan.kind == "SIGSTOP":
        os.kill(pids[plan.culprit], signal.SIGCONT)
    (folder / "over").touch()
    handle.deadline = time.monotonic() + END_S
    try:
        handle.join()
        return
    except Exception as error:
        if plan.kind != "SIGKILL":
            print(f"the ranks are replaced, as they did not end: {str(error).splitlines()[-1]}", flush=True)
    ranks.close()


def expected(plan: Plan, bases: list[tuple[Any, ...]], on_gpu: bool) -> list[Any]:
    """Return where the ranks part: numbers of calls of communicators, and words."""
    found: list[Any] = []
    for comm, (number, base) in enumerate(bases):
        ranks = 1 - plan.culprit, plan.culprit
        if on_gpu and plan.kind in CAPTURED:
            if there := first_difference(*(captures(plan, rank, comm) for rank in ranks)):
                found.append((number, base + there[0] + 1))
        elif there := first_difference(*(places(plan, rank, comm) for rank in ranks)):
            found += [there[1].words] if on_gpu and there[1] is not None else [(number, base + there[0] + 1)]
    return found


def judged(plan: Plan, findings: list[Finding], lines: list[str], bases: list[tuple[Any, ...]], on_gpu: bool) -> bool:
    """Whether the first finding is about the right rank and call."""
    if not findings:
        return False
    first, text = findings[0], "\n".join(lines)
    if plan.kind in ("is slow", "SIGKILL"):
        return (first.kind, first.ranks) == ("late" if plan.kind == "is slow" else "gone", (plan.culprit,))
    if plan.kind in ("SIGSTOP", "loops"):
        word = "stopped by a signal" if plan.kind == "SIGSTOP" else "in endless"
        if first.kind != "missing" or first.ranks != (plan.culprit,) or word not in text:
            return False
    named = plan.culprit in first.ranks
    places = expected(plan, bases, on_gpu)
    told = any(place in first.text if isinstance(place, str) else place in first.calls for place in places)
    return named and (told or plan.kind == "SIGSTOP")


def plan_of(number: int, seed: int, kind: str) -> Plan:
    """Draw a job."""
    draw = random.Random(f"graphs {seed} {number}")
    return Plan(
        draw.randrange(1 << 30),
        kind,
        draw.randrange(2),
        draw.randint(3, 40),
        draw.randrange(GRAPHS),
        1 + draw.randrange(3),
    )


def faults_of(options: Any, plans: Iterator[Plan], lock: threading.Lock, until: float) -> list[dict[str, Any]]:
    """Break one job after the other with ranks of their own, as long as there are plans and time."""
    backend = {"cpu": "shm", "cuda": "nccl"}[options.device]
    rows: list[dict[str, Any]] = []
    with Ranks(2, backend=backend, timeout_s=LONG_S, max_bytes=1 << 20, deadline_s=WARM_S) as ranks:
        ranks.run(warm_up)
        print("a pair of ranks is ready", flush=True)
        while time.monotonic() < until:
            with lock:
                plan = next(plans, None)
            if plan is None:
                break
            try:
                row = one_fault(ranks, plan, options.device == "cuda")
            except Exception as error:  # a job that could not be looked at counts as one that was not explained
                row = {
                    "kind": plan.kind,
                    "seed": plan.seed,
                    "right": False,
                    "said": [f"{type(error).__name__}: {error}"],
                }
                ranks.close()
            rows.append(row)
            print(
                json.dumps(row if options.verbose or not row["right"] else {**row, "said": row["said"][:1]}), flush=True
            )
    return rows


def faults(options: Any) -> int:
    """Break jobs, several at a time, and count those of which the right rank and call were told."""
    kinds = options.kinds or KINDS
    started = time.monotonic()
    numbers = range(options.first, options.first + options.faults)
    chosen = sorted(((kinds[number % len(kinds)], number) for number in numbers), key=lambda one: KINDS.index(one[0]))
    # Those that end ranks come last: what they leave on the GPU must not disturb others.
    plans = iter([plan_of(number, options.seed, kind) for kind, number in chosen])
    lock, until = threading.Lock(), started + options.seconds
    with ThreadPoolExecutor(options.pairs) as pool:
        pairs = [pool.submit(faults_of, options, plans, lock, until) for _ in range(options.pairs)]
        rows = [row for pair in pairs for row in pair.result()]
    counts = Counter(row["kind"] for row in rows)
    by_kind = {kind: [sum(row["right"] for row in rows if row["kind"] == kind), counts[kind]] for kind in counts}
    right = sum(row["right"] for row in rows)
    found = {"faults": len(rows), "right": right, "by_kind": by_kind, "seconds": round(time.monotonic() - started, 1)}
    print(json.dumps(found))
    backend = {"cpu": "shm", "cuda": "nccl"}[options.device]
    told = [row if not row["right"] else {**row, "said": [], "expected": []} for row in rows]
    write(options.output, {**head("graph_hangs", 2, backend), "seed": options.seed, **found, "rows": told})
    return int(right < 0.98 * options.faults)
