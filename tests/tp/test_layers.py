"""Each layer gives what its undivided equivalent in torch gives, on 1, 2 and 4 ranks."""

import pytest
import torch
import torch.nn.functional as F

from commlib.tp import (
    ColumnParallelLinear,
    FusedResidualNorm,
    Pipeline,
    RandomWeights,
    RowParallelLinear,
    VocabParallelEmbedding,
    gather_rows,
    heads,
    shard,
)
from tests.on_ranks import on_ranks

WORLDS = pytest.mark.parametrize("world", [1, 2, 4])
SOURCE = RandomWeights(3)


def rows(count, width, seed=0):
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


def linear(name, outputs, x, bias=True):
    """Return what an undivided layer does."""
    weight, added = SOURCE.read(f"{name}.weight", (outputs, x.shape[1])), SOURCE.read(f"{name}.bias", (outputs,))
    return F.linear(x, weight, added * bias)


@WORLDS
@pytest.mark.parametrize("bias", [False, True])
@on_ranks()
def test_the_parts_of_a_column_parallel_layer_are_the_outputs_of_the_whole(comm, world, bias):
    layer, part = ColumnParallelLinear(comm, 12, 13, bias=bias), shard(13, comm.rank, world)
    layer.load(SOURCE, "layer")
    whole = linear("layer", 13, rows(5, 12), bias)
    torch.testing.assert_close(layer(rows(5, 12)), whole.narrow(1, part.start, part.length))


@WORLDS
@on_ranks()
def test_a_merged_layer_has_the_heads_of_its_rank_and_kv_heads_are_copied_where_they_are_few(comm, world):
    queries, keys = (part.times(4) for part in heads(8, 2, comm.rank, world))
    layer = ColumnParallelLinear(comm, 12, [queries, keys, keys], bias=True)
    layer.load(SOURCE, "q", "k", "v")
    with pytest.raises(ValueError, match=r"names are \['q'\], but this layer has 3 parts"):
        layer.load(SOURCE, "q")
    q, k, v = (linear(name, outputs, rows(5, 12)) for name, outputs in (("q", 32), ("k", 8), ("v", 8)))
    kv_heads = [comm.rank * 2 // world] if world > 1 else [0, 1]  # two on four ranks: each on two
    at = slice(4 * kv_heads[0], 4 * kv_heads[-1] + 4)
    torch.testing.assert_close(layer.split(layer(rows(5, 12))), (q.chunk(world, 1)[comm.rank], k[:, at], v[:, at]))


@WORLDS
@pytest.mark.parametrize("bias", [False, True])
@on_ranks()
def test_a_row_parallel_layer_gives_the_whole_output_with_the_bias_once(comm, world, bias):
    part = shard(13, comm.rank, comm.size)
    layer = RowParallelLinear(comm, 13, 6, bias=bias)
    layer.load(SOURCE, "layer")
    x = rows(5, 13)[:, part.start : part.start + part.length]
    out = comm.empty(5, 6)
    assert layer.partial(x, out) is out, "the product is written where it is added up"
    torch.testing.assert_close(layer(x, out), linear("layer", 6, rows(5, 13), bias))
    assert torch.equal(layer(x.view(5, 1, -1))[:, 0], out)


@on_ranks(4)
def test_a_rank_may_have_none_of_a_layer_s_features(comm):
    whole = linear("down", 6, linear("up", 3, rows(8, 12)))
    up, down = ColumnParallelLinear(comm, 12, 3, bias=True), RowParallelLinear(comm, 3, 6, bias=True)
    up.load(SOURCE, "up")
    down.load(SOURCE, "down")
    pipeline = Pipeline(comm, {0: 2}, multiple=1)
    own = slice(2 * comm.rank, 2 * comm.rank + 2)
    torch.testing.assert_close(down(up(rows(8, 12))), whole)
    torch.testing.assert_close(down.scattered(up.gathered(rows(8, 12)[own], 8, pipeline), pipeline), whole[own])


@pytest.mark.slow
@on_ranks(2)
def test_torch_compile_takes_rows_that_the_ranks_do_not_divide(comm):
    norm = FusedResidualNorm(comm, 24, sequence_parallel=True)
    norm.load(SOURCE, "norm")
    graph = torch.compile(lambda x: norm(x * 2), fullgraph=True, backend="aot_eager", dynamic=True)
    x = rows(5, 24, comm.rank)
    torch.testing.assert_close(graph(x), norm(x * 2))


@WORLDS
@pytest.mark.parametrize("vocab_size", [4, 10, 131, 256])
@on_ranks()
def test_every_id_of_a_divided_vocabulary_gives_its_row_to_the_bit(comm, world, vocab_size):
    ids = torch.randperm(vocab_size, generator=torch.Generator().manual_seed(0)).view(1, -1)
    layer = VocabParallelEmbedding(comm, vocab_size, 6)
    layer.load(SOURCE, "table")
    out = comm.empty(*ids.shape, 6)
    assert layer(ids, out) is out, "no copy is between the look-up and the sum"
    assert torch.equal(layer(ids), out)
    assert torch.equal(out, SOURCE.read("table.weight", (vocab_size, 6))[ids])


def fused(comm, count, sequence_parallel):
    norm = FusedResidualNorm(comm, 24, 1e-5, weight_bias=0.5, sequence_parallel=sequence_parallel)
    norm.load(SOURCE, "norm")
    results = []
    residual = None
    for turn in range(3):
        x = rows(count, 24, comm.rank + 10 * turn)
        y, residual = norm(x, residual)
        assert y.data_ptr() == x.data_ptr(), "the norm takes the place of the partial result"
        results.append(y)
    return results, residual if not sequence_parallel else gather_rows(comm, residual, torch.empty_like(x))


@WORLDS
@pytest.mark.parametrize("count", [0, 1, 3, 4, 7, 8])
def test_sum_residual_and_norm_are_those_of_torch_and_sequence_parallel_adds_to_the_same_bits(shm_ranks, world, count):
    weight, h, expected = SOURCE.read("norm.weight", (24,)) + 0.5, torch.zeros(count, 24), []
    for turn in range(3):
        h = h + sum(rows(count, 24, rank + 10 * turn) for rank in range(world))
        expected.append(F.rms_norm(h, (24,), weight, 1e-5))
    together = shm_ranks.run(fused, count, False, world=world)
    scattered = shm_ranks.run(fused, count, True, world=world)
    for (ys, residual), (own_ys, own_residual) in zip(together, scattered, strict=True):
        torch.testing.assert_close([*ys, residual], [*expected, h])
        torch.testing.assert_close(own_ys, ys)
        assert torch.equal(own_residual, residual)


@pytest.mark.parametrize(("total", "size"), [(0, 3), (2, 3), (7, 1), (131, 4), (256, 4)])
def test_shards_follow_each_other_and_differ_by_one_at_most(total, size):
    parts = [shard(total, rank, size) for rank in range(size)]
    assert [part.start for part in parts] == [sum(p.length for p in parts[:rank]) for rank in range(size)]
    assert sum(part.length for part in parts) == total
    assert max(part.length for part in parts) - min(part.length for part in parts) <= 1


@pytest.mark.parametrize(("queries", "keys", "size"), [(8, 8, 4), (8, 2, 4), (6, 3, 2), (8, 1, 4), (32, 8, 8)])
def test_every_query_head_is_with_the_kv_head_that_it_reads(queries, keys, size):
    of = [heads(queries, keys, rank, size) for rank in range(size)]
    assert sum(own.length for own, _ in of) == queries
    for own, read in of:
        wanted = [head // (queries // keys) for head in range(own.start, own.start + own.length)]
        assert sorted(set(wanted)) == list(range(read.start, read.start + read.length))
        assert own.length % read.length == 0


@pytest.mark.parametrize(
    ("queries", "keys", "size", "said"),
    [(8, 3, 2, "8 query heads cannot share 3 KV heads"), (6, 3, 4, "divided over 4 ranks"), (6, 2, 4, "over 4 ranks")],
)
def test_heads_that_cannot_be_divided_are_refused(queries, keys, size, said):
    with pytest.raises(ValueError, match=said):
        heads(queries, keys, 0, size)
