"""commlib.fuse: all_reduce, + residual, RMSNorm in a compiled model become one operator, where that is the same."""

import operator

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.nn.functional as F

import commlib
from tests.fused import EPS, OURS, WIDTH, drawn, fused, huggingface
from tests.on_ranks import on_ranks
from tests.programs.launched import launched

slow = pytest.mark.slow  # what is compiled

# --- how models write the norm ----------------------------------------------------------------------------------------


def llama(h, weight):
    wide = h.float()
    return (wide * torch.rsqrt((wide * wide).mean(dim=-1, keepdim=True) + EPS)).type_as(h) * weight


def gemma(h, weight):
    y = h.float()
    y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + EPS)
    return (y * (1.0 + weight.float())).type_as(h)


def torchs(h, weight):
    return F.rms_norm(h, h.shape[-1:], weight, EPS)


NORMS = (huggingface, llama, gemma, torchs)


def fault(norm, found, eager, weight):
    """Say what is wrong: h has the eager bits; y is one rounding from float64, and two from what rounds in between."""
    (y, h), (there, h_there) = found, eager
    if not torch.equal(h, h_there):
        return "the sum differs"
    wanted, error = norm(h.double(), weight.double()).double(), torch.finfo(y.dtype).eps / 2 + 1e-6
    if y.dtype != h.dtype or ((y.double() - wanted).abs() > error * wanted.abs() + 1e-6).any():
        return f"more than one rounding, by up to {(y.double() - wanted).abs().max():g}"
    apart = (y.double() - there.double()).abs()
    return "too far from the eager norm" if (apart > 3.1 * error * wanted.abs() + 1e-6).any() else ""


CASES = [(norm, torch.bfloat16, residual) for norm in NORMS for residual in (True, False)]
CASES += [(huggingface, torch.float32, True), (gemma, torch.float16, False)]


def every_spelling(rank, reduce, cases):
    """Fuse each spelling with and without a residual; return what is wrong."""
    faults = []
    for norm, dtype, with_residual in cases:
        x, residual = drawn(rank, 2, 3, WIDTH, dtype=dtype), drawn(7, 2, 3, WIDTH, dtype=dtype)
        weight = drawn(8, WIDTH, dtype=dtype)

        def program(x, norm=norm, with_residual=with_residual, residual=residual, weight=weight):
            total = reduce(x * 2)
            h = residual + total if with_residual else total
            return norm(h, weight), h

        values, count, ordered, others = fused(program, x)
        said = fault(norm, values, program(x), weight)
        if said or count != 1 or not ordered[0].startswith(OURS) or "aten.rsqrt.default" in others:
            faults.append((norm.__name__, dtype, with_residual, count, ordered, said))
    return faults


def in_place(x):
    dist.all_reduce(x)
    return x


def by_group(device):
    names = dist.group.WORLD.group_name
    return [
        *every_spelling(dist.get_rank(), in_place, CASES[::3]),
        *every_spelling(dist.get_rank(), lambda x: functional.all_reduce(x, "sum", names), CASES[1::3]),
    ]


@slow
@on_ranks(2)
def test_every_spelling_of_the_norm_behind_a_communicators_all_reduce_is_fused(comm):
    assert every_spelling(comm.rank, comm.all_reduce, CASES) == []


@slow
def test_every_spelling_of_the_norm_behind_torchs_all_reduce_is_fused(shm_ranks):
    assert shm_ranks.run(launched, by_group, "commlib", world=2) == [[]] * 2


# --- what stays as it is ----------------------------------------------------------------------------------------------


def over_another_dimension(total, residual, weight):
    wide = (total + residual).float()
    return (wide * torch.rsqrt(wide.pow(2).mean(0, keepdim=True) + EPS)).to(total.dtype) * weight


def statistics_in_bfloat16(total, residual, weight):
    h = total + residual
    return h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + EPS) * weight


def rounded_on_the_way(total, residual, weight):
    rounded = torch.empty_like(total, dtype=torch.float16).copy_(total)
    return huggingface(torch.empty_like(total).copy_(rounded) + residual, weight)


def sum_used_as_a_view(total, residual, weight):
    return huggingface(total.view(-1).view(total.shape) + residual, weight), total


# What is made of a sum.
OF_A_SUM = {
    "over another dimension": over_another_dimension,
    "statistics in bfloat16": statistics_in_bfloat16,
    "rounded on the way": rounded_on_the_way,
    "sum used as a view": sum_used_as_a_view,
    "sum used elsewhere": lambda total, residual, weight: (huggingface(total + residual, weight), total),
    "over two dimensions": lambda total, residual, weight: F.rms_norm(
        total + residual, total.shape, weight.expand(total.shape), EPS
    ),
    "result in float32": lambda total, residual, weight: huggingface(total + residual, weight.float()),
    "residual of one row": lambda total, residual, weight: huggingface(total + residual[:1], weight),
    "scaled residual": lambda total, residual, weight: huggingface(torch.add(total, residual, alpha=2), weight),
    "transposed residual": lambda total, residual, weight: huggingface(total + residual.view(WIDTH, -1).t(), weight),
    "weight made later": lambda total, residual, weight: huggingface(total + residual, weight * weight),
    "number as weight": lambda total, residual, weight: F.rms_norm(total + residual, total.shape[-1:], None, EPS) * 3,
    "number as residual": lambda total, residual, weight: huggingface(total + 3, weight),
}


def in_float64(comm, x, residual, weight):
    h = (comm.all_reduce(x.double() * 2) + residual.double()).to(torch.float64)
    return h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + EPS) * weight.double()


def in_float64_with_statistics_in_float32(comm, x, residual, weight):
    weight = weight.double()
    return huggingface(comm.all_reduce(x.double() * 2) + residual.double(), weight)


def large_rows(comm, x, residual, weight):
    x, residual, weight = x.repeat(1, 520), residual.repeat(1, 520), weight.repeat(520)  # 65 KiB each
    return huggingface(comm.all_reduce(x) + residual, weight)


def weight_of_another_type(comm, x, residual, weight):
    weight = weight.to(torch.float16)
    return huggingface(comm.all_reduce(x * 2) + residual, weight).to(x.dtype)


def weight_of_every_element(comm, x, residual, weight):
    weight = weight * residual
    return huggingface(comm.all_reduce(x * 2) + residual, weight)


def another_collective_between(comm, x, residual, weight):
    total = comm.all_reduce(x * 2)
    return huggingface(total + comm.broadcast(residual * 3, 0), weight)


KEPT = [*OF_A_SUM, in_float64, in_float64_with_statistics_in_float32, large_rows, weight_of_another_type]
KEPT += [weight_of_every_element, another_collective_between]


@slow
@pytest.mark.parametrize("kept", KEPT)
def test_what_is_not_the_same_is_not_fused(comm, kept):
    def of_a_sum(comm, x, residual, weight):
        return OF_A_SUM[kept](comm.all_reduce(x * 2), residual, weight)

    program = of_a_sum if kept in OF_A_SUM else kept
    shapes = (4, WIDTH), (4, WIDTH), (WIDTH,)
    args = comm, *(drawn(seed, *shape, dtype=torch.bfloat16) for seed, shape in enumerate(shapes, 1))
    values, count, ordered, _ = fused(program, *args)
    eager = program(*args)
    pairs = zip(values, eager, strict=True) if isinstance(eager, tuple) else [(values, eager)]
    assert all(torch.equal(a, b) for a, b in pairs)
    assert count == 0
    assert ordered[0] == "commlib::all_reduce"


# --- what else a graph has --------------------------------------------------------------------------------------------


@slow
def test_the_size_of_a_batch_is_no_residual_and_no_weight(comm):
    def program(x, weight):
        h = comm.all_reduce(x * 2) + x.shape[0]
        return huggingface(h, weight) + F.rms_norm(comm.all_reduce(x * 3), x.shape[-1:], None, EPS) * x.shape[0]

    x, weight = drawn(1, 4, WIDTH), drawn(2, WIDTH)
    torch._dynamo.mark_dynamic(x, 0)
    values, count, *_ = fused(program, x, weight)
    assert count == 0
    assert torch.equal(values, program(x, weight))


@slow
def test_a_sum_that_is_the_next_residual_too_is_fused_without_one(comm):
    def program(x, weight):
        total = comm.all_reduce(x * 2)
        return huggingface(total, weight), total + 1

    x, weight = drawn(1, 4, WIDTH), drawn(2, WIDTH)
    values, count, _, _ = fused(program, x, weight)
    assert count == 1
    assert torch.equal(values[1], program(x, weight)[1])


@slow
def test_of_two_norms_of_one_sum_the_first_is_fused(comm):
    def program(x, residual, weight):
        h = comm.all_reduce(x * 2) + residual
        return huggingface(h, weight), gemma(h, weight), h

    args = drawn(1, 4, WIDTH), drawn(2, 4, WIDTH), drawn(3, WIDTH)
    values, count, ordered, _ = fused(program, *args)
    assert (count, ordered) == (1, [OURS])
    assert all(torch.allclose(a, b, rtol=1e-6, atol=1e-6) for a, b in zip(values, program(*args), strict=True))


@slow
def test_a_fused_call_keeps_its_place_among_the_collectives(comm):
    def program(x, residual, weight):
        largest = comm.all_reduce(x * 1, "max")
        h = comm.all_reduce(x * 2) + residual
        comm.barrier()
        return comm.broadcast(huggingface(h, weight), 0), largest

    args = drawn(1, 4, WIDTH), drawn(2, 4, WIDTH), drawn(3, WIDTH)
    _, count, ordered, _ = fused(program, *args)
    assert (count, ordered) == (1, ["commlib::all_reduce", OURS, "commlib::barrier", "commlib::broadcast"])


@slow
def test_a_norm_behind_a_parameter_of_the_graph_that_changes_is_fused_out_of_place(comm):
    def program(x, weight):
        comm.all_reduce(x)  # an input of the graph
        return huggingface(x, weight)

    x, weight = drawn(1, 4, WIDTH), drawn(2, WIDTH)
    mine, eager = x.clone(), x.clone()
    values, count, _, _ = fused(program, mine, weight)
    expected = program(eager, weight)
    assert count == 1
    assert torch.equal(mine, eager)
    assert torch.allclose(values, expected, rtol=1e-6, atol=1e-6)


def graph_with_torchs_own_norm(device, redop="sum", width=WIDTH):
    """Make the graph by hand: on CPUs torch takes this norm apart."""
    x, weight = torch.empty(4, width, device="meta"), torch.empty(width, device=device)
    graph = torch.fx.Graph()
    token, given, factor = (graph.placeholder(name) for name in ("token", "x", "weight"))
    ordered, aten = torch.ops.higher_order.with_effects, torch.ops.aten
    calls = [
        graph.call_function(ordered, (token, torch.ops.commlib.all_reduce.default, given, redop, given, 3, "name"))
    ]
    calls += [graph.call_function(operator.getitem, (calls[0], 1))]
    calls += [graph.call_function(aten._fused_rms_norm.default, (calls[1], [width], factor, 1e-3))]
    calls += [graph.call_function(operator.getitem, (calls[2], 0))]
    for node, value in zip((given, factor, *calls), (x, weight, (token, x), x, (x, x), x), strict=True):
        node.meta["val"] = value
    graph.output((calls[3], graph.call_function(operator.getitem, (calls[0], 0))))
    return graph, token, given, factor


def test_torchs_own_norm_of_gpus_is_fused_and_the_call_keeps_its_limit():
    graph, token, given, factor = graph_with_torchs_own_norm("meta")
    assert commlib.fuse(graph) == 1
    graph.lint()
    (call,) = graph.find_nodes(op="call_function", target=torch.ops.higher_order.with_effects)
    name = torch.ops.commlib.all_reduce_rms_norm.default
    assert call.args == (token, name, given, None, factor, None, None, 1e-3, 0.0, False, None, 3, "name")
    assert not graph.find_nodes(op="call_function", target=torch.ops.aten._fused_rms_norm.default)


@pytest.mark.parametrize("form", [("cpu",), ("meta", "max"), ("meta", "sum", WIDTH - 4)], ids=str)
def test_a_weight_on_another_device_what_is_no_sum_and_an_odd_width_are_not_fused(form):
    assert commlib.fuse(graph_with_torchs_own_norm(*form)[0]) == 0


@slow
def test_gradients_are_those_of_the_graph_without_the_pass(comm):
    def program(x, residual, weight):
        h = comm.all_reduce(x * 2) + residual
        return huggingface(h, weight).square().sum()

    found = []
    for compiled in (lambda *args: fused(program, *args), lambda *args: (program(*args), 1)):
        args = [drawn(1, 4, WIDTH), drawn(2, 4, WIDTH).requires_grad_(), drawn(3, WIDTH).requires_grad_()]
        loss, count, *_ = compiled(*args)
        assert count == 1
        loss.backward()
        found.append([loss.detach(), args[1].grad, args[2].grad])
    assert all(torch.allclose(a, b, rtol=1e-5, atol=1e-5) for a, b in zip(*found, strict=True))


@slow
@on_ranks(2)
def test_each_communicator_keeps_its_own_sums(comm):
    x, weight = drawn(comm.rank, 4, WIDTH), drawn(9, WIDTH)
    with comm.split(0, -comm.rank) as pair:

        def program(x):
            h = pair.all_reduce(x * 2) + comm.all_reduce(x * 3)
            y = huggingface(h, weight)
            return y, comm.all_reduce(huggingface(pair.all_reduce(y * 1) + h, weight))

        values, count, ordered, _ = fused(program, x)
        assert all(torch.allclose(a, b, rtol=1e-5, atol=1e-5) for a, b in zip(values, program(x), strict=True))
    assert (count, ordered) == (2, ["commlib::all_reduce", OURS, OURS, "commlib::all_reduce"])
