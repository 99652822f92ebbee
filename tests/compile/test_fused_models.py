"""commlib.fuse in whole models, in groups that others serve, and in Inductor."""

import logging

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.nn.functional as F

import commlib
from commlib import tp
from commlib.compile import fuse
from tests.errors_and_logs import logged
from tests.fused import EPS, OURS, WIDTH, drawn, fused, huggingface
from tests.on_ranks import on_ranks
from tests.programs.launched import launched

pytestmark = pytest.mark.slow


@on_ranks(2)
@torch.no_grad()
def test_layers_of_commlib_tp_become_the_same_operators_with_the_norm_apart_and_as_one_call(comm):
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

    tokens = torch.tensor([[0, 7, 30]])
    for program, fusions in ((apart, 1), (at_once, 0)):
        values, count, ordered, _ = fused(program, tokens)
        assert (count, ordered) == (fusions, ["commlib::all_reduce", OURS])
        torch.testing.assert_close(values, apart(tokens), rtol=1e-5, atol=1e-5)


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


@on_ranks(2)
@torch.no_grad()
def test_inductor_fuses_for_one_batch_and_then_for_any_and_says_how_many(comm):
    torch._dynamo.reset()
    matrix, weights = drawn(4, WIDTH, WIDTH) / 8, (drawn(5, WIDTH), drawn(6, WIDTH))

    def program(x, residual):
        for weight in weights:
            residual = residual + comm.all_reduce(x @ matrix)
            x = huggingface(residual, weight)
        return x, residual

    compiled = torch.compile(program, fullgraph=True, backend=commlib.inductor, mode="reduce-overhead")
    with logged(logging.INFO) as log:
        for rows in (3, 5, 7):
            args = drawn(comm.rank, rows, WIDTH), drawn(9, rows, WIDTH)
            torch.testing.assert_close(compiled(*args), program(*args), rtol=1e-4, atol=1e-4)
    told = [text for text in log if text.startswith("torch.compile")]
    assert told == ["torch.compile: 2 of 2 all_reduces became one call with the RMSNorm behind"] * 2


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
    return fuse._Pass().uuid()
