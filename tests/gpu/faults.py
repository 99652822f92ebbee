"""A rank that comes late, or aborts: what every rank hears, and how long it takes."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from commlib.communicator import Communicator
from commlib.errors import CommError
from commlib.plan import Plan
from tests.gpu.fresh import fresh
from tests.gpu.steady import Steady, capture, pinned, warm_up

NOTICE_S = 2.0  # for a death, an abort
PATIENCE_S = 1.0  # for a rank that is late
LATE_S = PATIENCE_S + 0.7
ARENA_BYTES = 32 << 20  # where tensors are to lie in it
Heard = tuple[list[str], str, float]  # errors of three calls, what is wrong with the output, and how long it took


def error_of(call: Callable[[], object]) -> str:
    try:
        call()
        return ""
    except CommError as error:
        return f"{type(error).__name__}: {error}"


def finish(comm: Communicator) -> str:
    """Wait for the GPU, which every fault lets go, and return what check() says."""
    torch.cuda.synchronize()
    return error_of(comm.check)


def together(comm: Communicator) -> None:
    """Let the GPUs begin what is called next within microseconds of each other."""
    comm.barrier()
    torch.cuda._sleep(5_000_000)  # until all of them have it
    comm.all_reduce(torch.ones(1, device=comm.device))


def impatient(
    comm: Communicator,
    name: str,
    algorithm: str,
    *,
    patience_s: float = PATIENCE_S,
    max_bytes: int = 1 << 20,
    **params: int,
) -> Communicator:
    """Make one more communicator, with one algorithm and a short deadline."""
    made = fresh(comm, patience_s=patience_s, max_bytes=max_bytes)
    made.use(Plan.only({name: algorithm}, base=made.plan, params=params))
    return made


def over(
    comm: Communicator,
    name: str,
    algorithm: str,
    count: int,
    *,
    symmetric: bool = False,
    patience_s: float = PATIENCE_S,
    **params: int,
) -> Steady:
    """Return a call on a communicator of its own, after one that compiled and connected everything."""
    with pinned(comm, name, algorithm, **params):
        warm_up(Steady(comm, name, count, symmetric=symmetric))
    max_bytes = ARENA_BYTES if symmetric else 1 << 20
    made = impatient(comm, name, algorithm, patience_s=patience_s, max_bytes=max_bytes, **params)
    call = Steady(made, name, count, symmetric=symmetric)
    warm_up(call)
    comm.barrier()
    return call


def come_late(
    comm: Communicator, name: str, algorithm: str, count: int, *, in_graph: bool = False, again: int = 0, **how: Any
) -> Heard:
    """The last rank comes after the others have gone; a graph has been replayed in time, and is at last `again`."""
    call = over(comm, name, algorithm, count, **how)
    made, graph = call.comm, capture(call) if in_graph else None
    run = graph.replay if graph else call.run
    if graph:
        graph.replay()
    call.load(1)
    torch.cuda.synchronize()
    comm.barrier()
    if made.rank == made.size - 1:
        time.sleep(LATE_S)
    start = time.monotonic()
    # The late rank may have been told by now, and then makes no call at all.
    heard = [error_of(run) or finish(made), error_of(made.check), error_of(call.run)]
    spent = time.monotonic() - start
    for _ in range(again):
        run()
    torch.cuda.synchronize()
    at_once = time.monotonic() - start - spent < PATIENCE_S
    assert at_once or made.rank == made.size - 1, "a communicator that has ended lets later replays through"
    del run, graph
    made.close()
    return heard, call.wrong(1), spent


def assert_late_rank_is_named(others: Sequence[Heard], what: str) -> None:
    """The first to notice says what it was in, and tells the others."""
    for rank, (heard, _, spent) in enumerate(others):
        assert heard[0].startswith(f"CommTimeout: rank {rank}: "), heard[0]
        assert f"waited 1 s for rank {len(others)}, which did not come" in heard[0]
        assert spent < 3 * PATIENCE_S
    assert any(what in heard[0] for heard, _, _ in others), others


def abort_while_others_wait(
    comm: Communicator, name: str, algorithm: str, count: int, **how: Any
) -> tuple[list[str], float]:
    call = over(comm, name, algorithm, count, patience_s=6.0, **how)
    made, start = call.comm, time.monotonic()
    if made.rank == 0:
        time.sleep(0.3)
        made.abort("rank 0 has had enough of it")
    else:
        call.run()
    heard = [finish(made), error_of(call.run)]
    spent = time.monotonic() - start
    made.close()
    return heard, spent


def assert_all_hear_of_the_abort(answers: Sequence[tuple[list[str], float]]) -> None:
    (own, _), *others = answers
    assert own == ["CommError: rank 0 has had enough of it"] * 2
    for heard, spent in others:
        assert heard[0].startswith("CommError: ")
        assert "rank 0" in heard[0]
        assert heard[1] == heard[0]
        assert spent < 0.3 + NOTICE_S
