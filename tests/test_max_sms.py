"""max_sms= of a call: every collective takes it, and CPUs, which have no multiprocessors, do as without."""

import inspect
from functools import partial
from typing import Any
from unittest import mock

import pytest
import torch

from commlib.collectives import COLLECTIVES
from commlib.communicator import Communicator
from commlib.compile import operators
from commlib.core.dispatch import Dispatcher
from commlib.core.work import StreamExecutor
from commlib.plan.rules import SPARING
from commlib.tools.testing.conformance import Scope, check_algorithm
from tests.epilogues import INT8
from tests.limited import Limited
from tests.on_ranks import on_ranks


@on_ranks(2, "each_ranks")
def test_on_cpus_a_limit_changes_nothing(comm: Communicator) -> None:
    for max_sms in (1, 16):
        limited: Any = Limited(comm, max_sms)
        for name, spec in COLLECTIVES.items():
            assert not check_algorithm(limited, name, next(iter(spec.rows(comm.backend))), Scope((33, 5000))).wrong


def test_every_collective_takes_it_and_messages_of_a_pair_do_not() -> None:
    public = {name: call for name, call in vars(Communicator).items() if inspect.isfunction(call) and name[0] != "_"}
    takes = {name for name, call in public.items() if {"x", "max_sms"} <= inspect.signature(call).parameters.keys()}
    moves = {name for name, call in public.items() if "x" in inspect.signature(call).parameters}
    assert moves - takes == {"send", "recv", "send_recv"}


@on_ranks(2, "each_ranks")
def test_an_epilogue_takes_a_limit_and_tells_native_code_of_it(comm: Communicator) -> None:
    x = torch.arange(16.0).view(2, 8) + comm.rank
    with mock.patch.object(comm.dispatcher, "calls", mock.Mock(wraps=comm.dispatcher.calls)) as calls:
        pairs = zip(INT8(comm, x, max_sms=4), INT8(comm, x), strict=True)
    limited, free = calls.all_reduce_epilogue.call_args_list
    assert all(torch.equal(a, b) for a, b in pairs)
    assert list(limited.args[len(free.args) :]) == ([4] if comm.backend == "shm" else [])


def with_limits(comm: Communicator, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Make each collective on few multiprocessors."""
    sizes, many, block, weight = [len(x)] * comm.size, x.repeat(comm.size), torch.empty_like(x), x.new_ones(8)
    made = [comm.all_reduce(x + comm.rank, "max", out=block * 0, max_sms=3), comm.reduce(x * 2, 0, max_sms=3)]
    made += [comm.reduce_scatter_tensor(torch.empty_like(x), many * 2, max_sms=3)]
    made += [comm.reduce_scatterv(torch.empty_like(x), many * 3, sizes, max_sms=3)]
    made += [comm.all_gather_into_tensor(torch.empty_like(many), x * 2, max_sms=3)]
    made += [comm.all_gatherv(torch.empty_like(many), x * 3, sizes, max_sms=3)]
    made += [comm.all_to_all_single(torch.empty_like(many), many * 2, max_sms=3)]
    made += [comm.all_to_all_single(torch.empty_like(many), many * 3, sizes, sizes, max_sms=3)]
    stacked = comm.gather(x * 4, 0, max_sms=3)
    made += [comm.broadcast(x * comm.rank, 0, max_sms=3), comm.scatter(stacked, 0, torch.empty_like(x), max_sms=3)]
    made += comm.all_reduce_rms_norm(x * 5, None, weight, max_sms=3)
    y, *others = comm.all_reduce_rms_norm(x * 6, None, weight, quant="fp8_token", max_sms=3)
    return *(each + 1 for each in made if each is not None), y.float(), *others


@on_ranks(2)
def test_native_code_gets_the_limit_of_every_collective(comm: Communicator) -> None:
    with mock.patch.object(comm.dispatcher, "calls", mock.Mock(wraps=comm.dispatcher.calls)) as calls:
        with_limits(comm, torch.arange(8.0))
    assert {name for name, _, _ in calls.method_calls} == {*operators.COLLECTIVES, "all_reduce_rms_norm"}
    assert {arguments[-1] for _, arguments, _ in calls.method_calls} == {3}


@pytest.mark.slow
@on_ranks(2, "each_ranks")
def test_a_graph_holds_the_limit_of_every_collective(comm: Communicator) -> None:
    import torch._dynamo
    from torch._dynamo.backends.common import aot_autograd

    limits = {}

    def look(graph: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        ordered = [node for node in graph.graph.nodes if "with_effects" in str(node.target)]
        limits.update({node.args[1].name(): node.args[-2] for node in ordered})
        return graph

    torch._dynamo.reset()
    x = torch.arange(8.0) + 10 * comm.rank
    found = torch.compile(with_limits, fullgraph=True, backend=aot_autograd(fw_compiler=look))(comm, x)
    assert all(torch.equal(a, b) for a, b in zip(found, with_limits(comm, x), strict=True))
    schemas = [getattr(torch.ops.commlib, name).default._schema for name in operators._RUNS]
    takes = {schema.name for schema in schemas if "int max_sms" in str(schema) and "epilogue" not in schema.name}
    assert limits == dict.fromkeys(takes, 3)


@on_ranks(2, "each_ranks")
def test_what_is_no_number_of_multiprocessors_is_refused_by_name(comm: Communicator) -> None:
    for call in (comm.all_reduce, partial(INT8, comm)):
        with pytest.raises(ValueError, match="max_sms=-1: expected a number of multiprocessors, or 0 for no limit"):
            call(torch.ones(8), max_sms=-1)
        with pytest.raises(TypeError, match=r"max_sms=1\.5: "):
            call(torch.ones(8), max_sms=1.5)


@on_ranks(2, "each_ranks")
def test_on_cpus_an_asynchronous_call_is_told_nothing_of_multiprocessors(comm: Communicator) -> None:
    x, calls = torch.ones(8), mock.Mock(wraps=comm.dispatcher.calls)
    with mock.patch.object(comm.dispatcher, "calls", calls):
        comm.all_reduce(x, async_op=True).wait()
        comm.all_reduce(x, async_op=True, max_sms=4).wait()
        comm.barrier(async_op=True).wait()
    assert comm.explain("all_reduce", 1 << 26, async_op=True) == comm.explain("all_reduce", 1 << 26)
    given = [len(call.args) for call in (*calls.all_reduce.call_args_list, calls.enqueue_barrier.call_args)]
    assert given == [3, 4 if comm.backend == "shm" else 3, 0]


def test_on_gpus_an_asynchronous_call_spares_them_unless_it_has_a_limit() -> None:
    calls, executor = mock.Mock(), StreamExecutor(torch.device("cuda", 0))
    dispatcher, ways = Dispatcher(mock.Mock(), calls, executor, native=True), []
    with mock.patch.object(StreamExecutor, "submit", lambda self, queue, name, call: ways.append(call())):
        dispatcher.call("all_reduce", ("x", "sum", None), None, True, 0)
        dispatcher.call("all_reduce", ("x", "sum", None), None, True, 8)
        dispatcher.later("all_gather", lambda make: make("all_gather", "out", "x"))  # as torch's group does
        dispatcher.later("barrier", lambda make: make("enqueue_barrier"))
    assert calls.all_reduce.call_args_list == [mock.call("x", "sum", None, SPARING), mock.call("x", "sum", None, 8)]
    assert calls.all_gather.call_args_list == [mock.call("out", "x", SPARING)]
    assert calls.enqueue_barrier.call_args_list == [mock.call()]


def test_an_asynchronous_call_has_the_sizes_that_there_were_when_it_was_made() -> None:
    calls, later, sizes = mock.Mock(), [], [1, 2]
    dispatcher = Dispatcher(mock.Mock(), calls, StreamExecutor(torch.device("cuda", 0)), native=True)
    with mock.patch.object(StreamExecutor, "submit", lambda self, queue, name, call: later.append(call)):
        dispatcher.call("all_gatherv", ("out", "x", sizes), None, True, 8)
    sizes.append(3)
    later[0]()
    calls.all_gatherv.assert_called_once_with("out", "x", [1, 2], 8)


def test_an_explanation_on_cpus_knows_no_multiprocessors(comm: Communicator) -> None:
    limited = comm.explain("all_reduce", 8, max_sms=4)
    assert limited == comm.explain("all_reduce", 8)
    assert "multiprocessors" not in str(limited)
    with pytest.raises(ValueError, match="max_sms=-2: expected a number of multiprocessors"):
        comm.explain("all_reduce", 8, max_sms=-2)
