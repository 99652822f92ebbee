"""The next token from a divided vocabulary is that of the gathered logits, however it is divided."""

import pytest
import torch

from commlib.tp import shard
from examples.llama import Sampling, gather_logits, greedy, sample

WORLDS = pytest.mark.parametrize("world", [1, 2, 4])
VOCAB = 131


def part(comm, whole):
    part = shard(whole.shape[1], comm.rank, comm.size)
    return whole[:, part.start : part.start + part.length].contiguous()


def logits(count, vocab_size=VOCAB):
    return torch.randn(count, vocab_size, generator=torch.Generator().manual_seed(1))


def how(count, temperature=1.0, top_k=0, seed=0):
    position = torch.arange(count)
    rows = torch.zeros(count, dtype=torch.int64)
    return Sampling(torch.full((count,), temperature), rows + top_k, rows + seed, position, top_k)


def gathered_and_best(comm, whole):
    local = part(comm, whole)
    return gather_logits(comm, local, whole.shape[1]), greedy(comm, local, whole.shape[1])


@WORLDS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gathered_logits_are_the_whole_and_the_best_token_is_theirs(shm_ranks, world, dtype):
    whole = logits(5).to(dtype)
    for gathered, best in shm_ranks.run(gathered_and_best, whole, world=world):
        assert torch.equal(gathered, whole)
        assert torch.equal(best, whole.argmax(-1))


@WORLDS
def test_among_equal_logits_the_lowest_id_wins_on_either_side_of_a_shard_s_edge(shm_ranks, world):
    edges = {shard(VOCAB, rank, size).start for size in (2, 4) for rank in range(size)} - {0}
    whole = torch.full((len(edges), VOCAB), -1.0)
    for row, edge in enumerate(sorted(edges)):
        whole[row, [edge - 1, edge, VOCAB - 1]] = 2.0
    whole = torch.cat([whole, torch.zeros(1, VOCAB)])
    for _, best in shm_ranks.run(gathered_and_best, whole, world=world):
        assert best.tolist() == [*(edge - 1 for edge in sorted(edges)), 0]


def drawn(comm, whole, sampling):
    return sample(comm, part(comm, whole), whole.shape[1], sampling)


@pytest.mark.parametrize("top_k", [0, 1, 5, 70, 1000])
def test_a_draw_is_the_same_however_many_ranks_divide_the_vocabulary(shm_ranks, top_k):
    whole, sampling = logits(50), how(50, 0.8, top_k, 7)
    results = [ids for world in (1, 2, 4) for ids in shm_ranks.run(drawn, whole, sampling, world=world)]
    assert all(torch.equal(ids, results[0]) for ids in results)
    assert len(set(results[0].tolist())) > 1


@WORLDS
def test_a_row_s_draw_does_not_depend_on_its_batch_and_temperature_0_takes_the_best(shm_ranks, world):
    whole, sampling = logits(9), how(9, 1.5, 0, 3)._replace(top_k=torch.arange(9) * 2, max_top_k=16)
    sampling.temperature[4] = 0.0
    (together, *_) = shm_ranks.run(drawn, whole, sampling, world=world)
    for row in range(9):
        single = Sampling(*(values[row : row + 1] for values in sampling[:4]), 2 * row)
        (results, *_) = shm_ranks.run(drawn, whole[row : row + 1], single, world=world)
        assert results.item() == together[row].item()
    assert together[4] == whole[4].argmax()


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_have_the_frequencies_of_the_softmax(shm_ranks, temperature):
    row, count = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0, 1.5]), 40_000
    (ids, *_) = shm_ranks.run(drawn, row.repeat(count, 1), how(count, temperature), world=2)
    results = torch.bincount(ids, minlength=6) / count
    torch.testing.assert_close(results, (row / temperature).softmax(0), atol=0.012, rtol=0)  # 4.8 standard deviations
