"""Texts that findings and pages share: lists of ranks, times, calls of a communicator, what a rank is doing."""

from __future__ import annotations

from pathlib import Path

from commlib.counts import counted, ranks_text
from commlib.debug.jobs import Job, Process, Rank
from commlib.debug.record import GPU, Slot, Wait


def seconds_text(seconds: float) -> str:
    """Write '0.31 s', '12.3 s', '4 min', '3 h'."""
    if seconds < 100:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def members_text(job: Job, slot: Slot) -> str:
    return ranks_text(job.name(slot, peer) for peer in range(slot.world))


def where_text(job: Job, slot: Slot) -> str:
    """Say which communicator it is, where there are several: ' of communicator 2 (ranks 0 and 2)'."""
    order = list(job.communicators)
    if len(order) < 2 or slot.id not in order:
        return ""
    return f" of communicator {order.index(slot.id) + 1} ({members_text(job, slot)})"


def waited_text(job: Job, slot: Slot, wait: Wait) -> str:
    return waited_in(job, slot, wait) + where_text(job, slot)


def waited_in(job: Job, slot: Slot, wait: Wait) -> str:
    if wait.message:
        sends = wait.message == 1
        wanted = (wait.peer, wait.number, sends)
        calls = (call for call in slot.messages.values() if (call.root, call.stream, call.sends) == wanted)
        details = next((f", {call.details}" for call in calls), "")
        way = "send to" if sends else "recv from"
        return f"{way} rank {job.name(slot, wait.peer)} (message #{wait.number}{details})"
    if wait.thread == GPU:
        return f"{slot.gpu.what}, {kernel_text(slot, slot.gpu.graph, wait.number)}"
    return str(slot.calls.get(wait.number) or f"call #{wait.number}")


def kernel_text(slot: Slot, graph: int, number: int, of_graph: int = -1) -> str:
    """Say which call it is: 'call 5 of 12 in replay 17 of graph 2 (captured at decode.py:88)'; of_graph: those over."""
    of = slot.graphs.get(graph)
    if of is None or not of.kernels:
        return f"call #{number} of its kernels" + (", with those of replayed graphs" if slot.graphs else "")
    replay, at = divmod(of.over if of_graph < 0 else of_graph, of.kernels)
    call = slot.calls.get(of.first + at) if of.calls == of.kernels else None
    site = call.site if call is not None and call.graph == graph else of.site
    captured = f" (captured at {Path(site).name})" if site else ""
    return f"call {at + 1} of {of.kernels} in replay {replay + 1} of graph {graph}{captured}"


def left_text(slot: Slot) -> str:
    gpu = slot.gpu
    return f"was in {gpu.left_what}, {kernel_text(slot, gpu.left_graph, gpu.left_in, gpu.left_of_graph)}"


def last_text(job: Job, slot: Slot, graph: int = 0) -> str:
    """Say what a rank did last in a communicator, and how often its GPU has run a graph."""
    call = slot.calls.get(slot.entered)
    if slot.gpu.at_ns and call is not None:
        of = slot.graphs.get(graph)
        over = counted(slot.gpu.over, "call")
        if of is not None and of.kernels:
            over += f" and {counted(of.over // of.kernels, 'replay')} of graph {graph}"
        return f"its GPU has finished {over}, its program made {call} last"
    if call is None:
        return "it has made no collective there yet"
    return f"its last one there is {call}, {seconds_text(job.seconds_since(call.entered_ns))} ago"


def doing_text(rank: Rank, before: Process | None, thread: int = 0) -> str:
    now, process = rank.process, f"process {rank.pid}"
    if now.gone or now.halted:
        return f"{process} is {'gone' if now.state == 'X' else now.halted}"
    stack = rank.stack(thread)
    if not rank.stacks:
        text = f"{process} does not say where it is"
    else:
        text = f"{process} is in {stack}" if stack and stack.frames else f"{process} runs no Python"
    share = now.busy_since(before) if before is not None else -1
    if share > 0.05:
        text += f"; it uses {share:.0%} of core {now.core}"
    elif share >= 0:
        text += "; it sleeps" + (f" in the kernel's {now.waits_in}" if now.waits_in not in ("", "0") else "")
    return text
