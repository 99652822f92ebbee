"""commlib.fuse in whole models, in groups that others serve, and in Inductor."""

from __future__ import annotations

import logging
import math

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import commlib
from commlib import fusion, tp
from tests.fused import EPS, OURS, WIDTH, drawn, fused, huggingface
from tests.programs.launched import launched

pytestmark = pytest.mark.slow


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(WIDTH) + 0.5)

    def forward(self, h):
        return huggingface(h, self.weight)


class Layer(nn.Module):
    """A layer of a Llama, of which this rank has its heads and its part of the hidden columns."""

    def __init__(self, comm, heads=8, hidden=128):
        super().__init__()
        self.comm, self.size = comm, WIDTH // heads
        self.norms = nn.ModuleList([Norm(), Norm()])
        self.qkv, self.gate_up = self.divided(3 * WIDTH, 3), self.divided(2 * hidden, 2)
        self.o, self.down = self.divided(WIDTH, 1, True), self.divided(hidden, 1, True)

    def divided(self, columns, parts, rows=False):
        """Return this rank's part of each of a matrix's parts."""
        whole = torch.randn(columns, WIDTH) / math.sqrt(WIDTH)
        mine = [part.chunk(self.comm.size)[self.comm.rank] for part in whole.chunk(parts)]
        weight = nn.Parameter(torch.cat(mine), requires_grad=False)
        return weight if rows else nn.Parameter(weight.t().contiguous(), requires_grad=False)

    def forward(self, x, residual):
        x, residual = self.normed(0, x, residual)
        q, k, v = (x @ self.qkv).unflatten(-1, (3, -1, self.size)).transpose(1, 3).unbind(2)
        x = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2) @ self.o
        x, residual = self.normed(1, self.comm.all_reduce(x), residual)
        gate, up = (x @ self.gate_up).chunk(2, -1)
        return self.comm.all_reduce((F.silu(gate) * up) @ self.down), residual

    def normed(self, number, x, residual):
        h = x if residual is None else residual + x
        return self.norms[number](h), h


class Model(nn.Module):
    """Two layers over an embedding whose words the ranks share."""

    def __init__(self, comm, words=32):
        super().__init__()
        self.comm = comm
        self.words = nn.Parameter(torch.randn(words, WIDTH).chunk(comm.size)[comm.rank].contiguous())
        self.layers, self.norm = nn.ModuleList([Layer(comm), Layer(comm)]), Norm()

    def forward(self, tokens):
        mine = tokens - self.comm.rank * len(self.words)
        here = (mine >= 0) & (mine < len(self.words))
        x = self.comm.all_reduce(F.embedding(mine * here, self.words) * here.unsqueeze(-1))
        residual = None
        for layer in self.layers:
            x, residual = layer(x, residual)
        return self.norm(residual + x)


@torch.no_grad()
def a_llama(comm, dtype):
    torch.manual_seed(0)
    model, tokens = Model(comm).to(dtype), torch.arange(12).view(2, 6) * 5 % 32
    values, count, ordered, others = fused(model, tokens)
    eager = model(tokens)
    return (values - eager).abs().max().item(), count, ordered, "aten.rsqrt.default" in others, eager, values


def test_a_llama_of_plain_torch_has_fused_operators_only(shm_ranks):
    for dtype, bound in ((torch.float32, 1e-5), (torch.bfloat16, 0.15)):
        ((*_, whole, _),) = shm_ranks.run(a_llama, torch.float32, world=1)
        for apart, count, ordered, left, _, values in shm_ranks.run(a_llama, dtype, world=2):
            assert (count, ordered, left) == (5, [OURS] * 5, False)
            assert apart <= bound
            assert (values.float() - whole).abs().max() <= 2 * bound


@torch.no_grad()
def of_tp(comm):
    """Compile layers of commlib.tp, with the norm apart and as one call."""
    embed, norm = tp.VocabParallelEmbedding(comm, 31, WIDTH), tp.FusedResidualNorm(comm, WIDTH)
    down = tp.RowParallelLinear(comm, WIDTH, WIDTH, bias=True)
    for name, layer in (("embed", embed), ("norm", norm), ("down", down)):
        layer.load(tp.RandomWeights(), name)

    def apart(tokens):
        x = embed(tokens)
        h = x + down(x[..., : down.part.length].relu())
        return F.rms_norm(h, h.shape[-1:], norm.weight, norm.eps), h

    def at_once(tokens):
        x = embed(tokens)
        return norm(down.partial(x[..., : down.part.length].relu()), x)

    tokens, found = torch.tensor([[0, 7, 30]]), []
    for program in (apart, at_once):
        values, count, ordered, _ = fused(program, tokens)
        eager = apart(tokens)
        close = [torch.allclose(a, b, rtol=1e-5, atol=1e-5) for a, b in zip(values, eager, strict=True)]
        found.append((count, ordered, close))
    return found


def test_layers_of_commlib_tp_become_the_same_operators_either_way(shm_ranks):
    ordered = ["commlib::all_reduce", OURS]
    assert shm_ranks.run(of_tp, world=2) == [[(count, ordered, [True, True]) for count in (1, 0)]] * 2


class Columns(nn.Module):
    """A block whose matrices DTensor divides."""

    def __init__(self):
        super().__init__()
        self.norm, self.end = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH, bias=False), nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        x = x + self.down(F.silu(self.up(self.norm(x))))
        return self.end(x)


@torch.no_grad()
def by_dtensor(device):
    torch.manual_seed(0)
    model, x = Columns(), drawn(1, 2, 3, WIDTH)
    whole = model(x)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    values, count, ordered, _ = fused(model, x)
    return count, ordered, torch.allclose(values, whole, rtol=1e-5, atol=1e-5)


def test_a_sum_of_dtensors_rowwise_parallel_is_fused(shm_ranks):
    for count, ordered, close in shm_ranks.run(launched, by_dtensor, "commlib", world=2):
        assert (count, ordered, close) == (1, [f"{OURS}_of_group"], True)


# --- groups -----------------------------------------------------------------------------------------------------------


def of_gloo(device):
    """Sum in groups that commlib does not serve on the CPU."""
    x, residual, weight = drawn(dist.get_rank(), 4, WIDTH), drawn(8, 4, WIDTH), drawn(9, WIDTH)
    found = []
    for backend in ("gloo", "cpu:gloo,cuda:commlib"):
        group = dist.new_group(backend=backend)

        def program(x, group=group):
            h = functional.all_reduce(x, "sum", group) + residual
            return F.rms_norm(h, h.shape[-1:], weight, EPS), h

        values, count, *_ = fused(program, x)
        eager = program(x)
        found += [count, *(torch.equal(a, b) for a, b in zip(values, eager, strict=True))]
    call = torch.ops.commlib.all_reduce_rms_norm_of_group
    y, h = call(x, residual, weight, EPS, 0.0, group.group_name)
    return found, torch.equal(h, eager[1]), torch.allclose(y, eager[0], rtol=1e-6, atol=1e-6)


def test_sums_of_groups_that_others_serve_are_not_fused_and_the_operator_serves_them_all_the_same(shm_ranks):
    assert shm_ranks.run(launched, of_gloo, "commlib", world=2) == [([0, True, True] * 2, True, True)] * 2


# --- Inductor ---------------------------------------------------------------------------------------------------------


@torch.no_grad()
def with_inductor(comm):
    """Compile with Inductor for one batch and then for any; return what was logged, and what agrees."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    layer, log = Layer(comm), []
    handler = logging.Handler()
    handler.emit = lambda record: log.append(record.getMessage())

    def program(x, residual):
        x, residual = layer.normed(0, comm.all_reduce(x @ layer.o.t() @ layer.o), residual)
        return layer.normed(1, comm.all_reduce(x @ layer.o.t() @ layer.o), residual)

    compiled, agree = torch.compile(program, fullgraph=True, backend=commlib.inductor, mode="reduce-overhead"), []
    logger = logging.getLogger("commlib")
    before = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        for rows in (3, 5, 7):
            args = drawn(comm.rank, rows, WIDTH), drawn(9, rows, WIDTH)
            pairs = zip(compiled(*args), program(*args), strict=True)
            agree += [torch.allclose(a, b, rtol=1e-4, atol=1e-4) for a, b in pairs]
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
    return [text for text in log if text.startswith("torch.compile")], agree


def test_inductor_fuses_and_says_how_many(shm_ranks):
    said = "torch.compile: 2 of 2 all_reduces became one call with the RMSNorm behind"
    assert shm_ranks.run(with_inductor, world=2) == [([said] * 2, [True] * 6)] * 2


def test_a_pass_that_inductor_has_already_is_not_dropped():
    options = {"post_grad_custom_pre_pass": lambda graph: None}
    program = torch.compile(lambda x: x * 2, backend=commlib.inductor, options=options)
    with pytest.raises(Exception, match=r"has a post_grad_custom_pre_pass already; call commlib.fuse\(graph\) in it"):
        program(torch.ones(2))


def test_what_inductor_keeps_on_disk_depends_on_the_backends_of_groups(shm_ranks):
    ours, theirs = (shm_ranks.run(launched, pass_name, name, world=1)[0] for name in ("commlib", "gloo"))
    assert ours != theirs
    assert ours == shm_ranks.run(launched, pass_name, "commlib", world=1)[0]


def pass_name(device):
    return fusion._Pass().uuid()
