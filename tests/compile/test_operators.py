"""torch.compile(fullgraph=True) takes collectives: each is an operator, and the values are those of eager calls."""

import logging
import os
import subprocess
from unittest import mock

import pytest
import torch
import torch.distributed as dist

import commlib
from commlib.compile import operators
from tests.fused import compiled_agrees, fused
from tests.on_ranks import on_ranks

slow = pytest.mark.slow  # all but one, which the gate has: compiling takes seconds


def out_of_place(comm, x):
    y = x * 2
    reduced = comm.all_reduce(y, "max", out=torch.empty_like(y))
    gathered = comm.all_gather_into_tensor(x.new_empty(comm.size * len(x)), reduced + y)
    return gathered * 3, y, comm.reduce_scatter_tensor(x.new_empty(len(x) // comm.size), y)


def in_place(comm, x):
    y = x + comm.rank
    same = comm.all_reduce(y, dist.ReduceOp.SUM)
    assert same is y
    comm.all_reduce(x)  # an input of the graph
    return y * 2, same, x + 1


def with_roots(comm, x):
    total = comm.reduce(x + 1, 1)
    comm.reduce(x * 2, 0)  # nobody looks at the result; rank 0 gets it all the same
    sent = comm.broadcast(x * (comm.rank + 1), 1)
    stacked = comm.gather(x, 0)
    part = comm.scatter(stacked, 0, out=torch.empty_like(x))
    return total * 1, sent + 1, part if stacked is None else stacked - part


def with_sizes(comm, x):
    sizes = [1, 3] + [0] * (comm.size - 2)
    mine = x[: sizes[comm.rank]] * 2
    everyone = comm.all_gatherv(x.new_empty(4), mine, sizes)
    block = comm.reduce_scatterv(torch.empty_like(mine), everyone, sizes, "avg")
    swapped = comm.all_to_all_single(torch.empty_like(x), x + 1)
    rows = comm.all_to_all_single(x.new_empty(2 * comm.size), x[: 2 * comm.size] * 1, [2] * comm.size, [2] * comm.size)
    return everyone + 1, block, swapped - 1, rows


def with_messages(comm, x):
    peer = 1 - comm.rank
    comm.send(x + comm.rank, peer)
    comm.barrier()
    theirs = comm.recv(torch.empty_like(x), peer)
    return theirs * 2, comm.send_recv(theirs, peer, torch.empty_like(x), peer) + 1


def with_norms(comm, x):
    weight, partial, residual = x.new_tensor(range(1, 9)), x + comm.rank, torch.full_like(x, 3)
    y, h = comm.all_reduce_rms_norm(partial, residual, weight, 1e-5)
    assert y is partial
    assert h is residual
    z, total = comm.all_reduce_rms_norm(x, None, weight, weight_bias=1.0, bias=weight, center=True)
    assert z is x, "an input of the graph"
    outs = torch.empty_like(x), torch.empty_like(x)
    again = comm.all_reduce_rms_norm(y * 2, h, weight, out=outs[0], residual_out=outs[1])
    return y + 1, residual, total * 2, *outs, *again


def with_quantised_norms(comm, x):
    rows, weight, found = (x + comm.rank).repeat(2, 32), x.new_ones(256), []
    for quant in ("fp8", "fp8_token", "fp8_group"):
        scale = x.new_tensor(0.5) if quant == "fp8" else None
        y, h, scale = comm.all_reduce_rms_norm(rows * 2, torch.ones_like(rows), weight, quant=quant, scale=scale)
        found += [y.float(), h, scale + 1]
    return tuple(found)


def drawn_for(comm, dtype):
    return lambda step: (torch.arange(8) % 5 + 10 * comm.rank + step).to(dtype)


PROGRAMS = [out_of_place, in_place, with_roots, with_sizes, with_messages, with_norms, with_quantised_norms]


@slow
@pytest.mark.parametrize("program", PROGRAMS)
@on_ranks(2)
def test_a_compiled_program_computes_what_the_eager_one_does(comm, program):
    dtype = torch.bfloat16 if program is in_place else torch.float32
    assert compiled_agrees(comm, program, drawn_for(comm, dtype)) == (True, 1), "compiled once, for all three calls"


@on_ranks(2)
def test_a_compiled_call_comes_behind_asynchronous_ones(comm):
    works = [comm.all_reduce(torch.ones(100_000), async_op=True) for _ in range(3)]
    graph = torch.compile(in_place, fullgraph=True, backend="aot_eager")
    assert graph(comm, torch.ones(2))[1].tolist() == [3.0, 3.0]
    assert all(work.is_completed() for work in works)
    messages = torch.compile(with_messages, fullgraph=True, backend="aot_eager")(comm, torch.ones(2))
    assert messages[1].tolist() == [comm.rank + 2.0] * 2


@pytest.fixture(autouse=True)
def forget():
    torch._dynamo.reset()


@slow
@pytest.mark.parametrize("name", ["all_reduce", "send"])
def test_an_asynchronous_call_says_that_it_cannot_be_compiled(comm, name):
    start = {
        "all_reduce": lambda x: comm.all_reduce(x, async_op=True),
        "send": lambda x: comm.send(x, 0, async_op=True),
    }
    graph = torch.compile(start[name], fullgraph=True, backend="aot_eager")
    with pytest.raises(Exception, match=f"{name} with async_op=True cannot be compiled; leave async_op out"):
        graph(torch.ones(2))


REFUSED = {
    "out has 3 elements, but needs 2: as many as x": lambda comm, x: comm.all_reduce(x, out=x.new_empty(3)),
    "max_sms=-1: expected a number of multiprocessors": lambda comm, x: comm.all_reduce(x, max_sms=-1),
    "scale is not given, but quant='fp8' needs one": lambda comm, x: comm.all_reduce_rms_norm(x, None, x, quant="fp8"),
}


@slow
@pytest.mark.parametrize("told", REFUSED)
def test_wrong_arguments_are_refused_when_the_graph_runs(comm, told):
    graph = torch.compile(REFUSED[told], fullgraph=True, backend="aot_eager")
    with pytest.raises(ValueError, match=told):
        graph(comm, torch.ones(8 if "scale" in told else 2))


@slow
def test_another_size_is_compiled_once_more_and_then_any_size_is_known(comm):
    graphs = []
    program = torch.compile(out_of_place, fullgraph=True, backend=lambda graph, inputs: graphs.append(graph) or graph)
    for size in (4, 6, 8, 10):
        x = torch.arange(float(size))
        assert all(torch.equal(a, b) for a, b in zip(program(comm, x), out_of_place(comm, x), strict=True))
    assert len(graphs) == 2


@slow
def test_a_graph_without_its_communicator_says_so(comm):
    with pytest.raises(commlib.Closed, match="the communicator of this compiled graph is gone"):
        torch.ops.commlib.barrier(torch.empty(0), "commlib-none")


@slow
def test_a_graph_says_that_its_communicator_is_closed(comm):
    graph = torch.compile(in_place, backend="aot_eager")
    graph(comm, torch.ones(2))
    name = comm.graph_name
    comm.close()
    for call in (lambda: torch.ops.commlib.barrier(torch.empty(0), name), lambda: graph(comm, torch.ones(2))):
        with pytest.raises(commlib.Closed, match=r"is closed; call commlib.init\(\) for a new one"):
            call()
    assert name not in {known for known, *_ in operators._KNOWN.values()}


@slow
def test_debug_logging_does_not_disturb_a_graph(caplog):
    with caplog.at_level(logging.DEBUG, "commlib"):
        with commlib.init(backend="shm", bootstrap="single", max_bytes=1 << 16) as made:
            graph = torch.compile(in_place, fullgraph=True, backend="aot_eager")
            assert graph(made, torch.ones(2))[1].tolist() == [1, 1]
        assert any("first all_reduce of 8 B" in text for text in caplog.messages)


def norm_between(comm, x):
    comm.all_reduce(x, "max")
    y, h = comm.all_reduce_rms_norm(x * 2, x + 1, torch.ones_like(x))
    return comm.broadcast(h, 0), y


@slow
def test_all_reduce_rms_norm_is_one_operator_and_keeps_its_place(comm):
    _, _, ordered, functions = fused(norm_between, comm, torch.ones(8))
    assert ordered == ["commlib::all_reduce", "commlib::all_reduce_rms_norm", "commlib::broadcast"]
    assert not any("rsqrt" in name or "sqrt" in name or "mean" in name for name in functions)
    _, _, ordered, functions = fused(with_quantised_norms, comm, torch.ones(8))
    assert ordered == ["commlib::all_reduce_rms_norm"] + ["commlib::all_reduce_rms_norm_scales"] * 2
    assert not any("amax" in name for name in functions)


X, MOST = torch.arange(4.0), 3
ROWS, WEIGHT = torch.randn(3, 256), torch.randn(256)
CASES = {
    "all_reduce": (X, "sum", X, MOST),
    "reduce": (X, X, 0, "max", MOST),
    "all_gather": (X.clone(), X, MOST),
    "all_gatherv": (X.clone(), X, [4], MOST),
    "reduce_scatter": (X.clone(), X, "avg", MOST),
    "reduce_scatterv": (X.clone(), X, [4], "sum", MOST),
    "all_to_all": (X.clone(), X, MOST),
    "all_to_allv": (X.clone(), X, [4], None, MOST),
    "gather": (X.view(1, 4), X, 0, MOST),
    "scatter": (X.clone(), X, 0, MOST),
    "broadcast": (X, 0, MOST),
    "send_recv": (X, 0, X.clone(), 0),
    "all_reduce_rms_norm": (ROWS, ROWS, WEIGHT, WEIGHT, None, 1e-6, 1.0, True, None, MOST),
    "all_reduce_rms_norm with strides": (ROWS[:, :128], None, WEIGHT[:128], None, None, 1e-6, 0.0, False, None, MOST),
    "all_reduce_rms_norm in fp8": (ROWS, ROWS, WEIGHT, None, torch.tensor(2.0), 1e-6, 0.0, False, "fp8", MOST),
    "all_reduce_rms_norm_scales of tokens": (ROWS, ROWS, WEIGHT, None, None, 1e-6, 0.0, False, "fp8_token", MOST),
    "all_reduce_rms_norm_scales of groups": (ROWS, ROWS, WEIGHT, None, None, 1e-6, 0.0, False, "fp8_group", MOST),
}


@slow
@pytest.mark.parametrize("name", CASES)
def test_torchs_own_checks_of_operators_pass(comm, name):
    op = getattr(torch.ops.commlib, name.split()[0]).default
    torch.library.opcheck(op, (*CASES[name], comm.graph_name))


@slow
@pytest.mark.parametrize("name", [name for name in CASES if name != "send_recv"])
def test_an_operator_tells_native_code_of_its_limit(comm, name):
    *given, most = CASES[name]
    with mock.patch.object(comm.dispatcher, "calls", mock.Mock(wraps=comm.dispatcher.calls)) as calls:
        for limit in (most, 0):
            getattr(torch.ops.commlib, name.split()[0])(*given, limit, comm.graph_name)
    (_, limited, _), (_, free, _) = calls.mock_calls
    assert (limited[-1], len(limited)) == (most, len(free) + 1)


@slow
def test_what_compiles_nothing_does_not_load_dynamo(quick_python):
    program = (
        "import sys, torch, commlib\n"
        "with commlib.init(backend='shm', bootstrap='single', max_bytes=1 << 16) as comm:\n"
        "    comm.all_reduce(torch.ones(2))\n"
        "assert 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([str(quick_python), "-c", program], env=dict(os.environ), check=True, timeout=60)


def turned(x):
    """Contiguous as it is written; Inductor gives a result the strides of what it is computed from."""
    return (x.t() * 2).contiguous()


def with_turned(comm, x, y):
    received = torch.empty_like(x)
    comm.send_recv(turned(x), 1 - comm.rank, out=received, src=1 - comm.rank)
    summed = comm.all_reduce(turned(x), out=turned(x + 2))
    told = comm.broadcast(turned(x + 3), 0)
    gathered = x.new_empty(16, 8)
    comm.all_gatherv(gathered, turned(x + 4), [64, 64])
    y, h = comm.all_reduce_rms_norm(turned(x + 5), turned(y), x.new_ones(8))
    part = comm.reduce_scatter_tensor(x.new_empty(4, 8), turned(x + 6))
    return received, summed + 1, told + 1, gathered, y, h, part


def with_barrier(comm, x, y):
    comm.all_reduce(y[2:4])
    comm.barrier()
    return x * 1


@slow
@pytest.mark.parametrize("program", [with_turned, with_barrier])
@on_ranks(2)
def test_inductor_may_lay_out_what_a_call_takes_and_keeps_what_is_computed_before_a_barrier(comm, program):
    torch._dynamo.reset()
    x = torch.arange(64.0).view(8, 8) + comm.rank
    mine, eager = (x, x + 1), (x, x + 1)
    found = torch.compile(program, fullgraph=True)(comm, *mine)
    torch.testing.assert_close((found, *mine), (program(comm, *eager), *eager))


@slow
def test_a_torch_that_cannot_be_taught_is_named_and_still_compiles_other_things(monkeypatch, caplog):
    def refuse(*given, **more):
        raise TypeError("substitute_in_graph is not what it was")

    monkeypatch.setattr(torch.compiler, "substitute_in_graph", refuse)
    with caplog.at_level(logging.WARNING, "commlib"):
        operators._register_with_dynamo()
    assert f"torch.compile cannot take commlib's collectives with torch {torch.__version__}" in caplog.text
    assert "TypeError: substitute_in_graph is not what it was" in caplog.text
