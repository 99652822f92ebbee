"""The model on GPUs: the same tokens eager and in graphs as on the CPU in float32."""

from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist

from commlib.communicator import Communicator
from commlib.tools.testing import Ranks
from commlib.tp import communicator, shard
from examples.llama import Draw, Engine, Llama, Sampling, gather_logits, greedy, sample
from examples.llama.scheduler import GREEDY
from tests.gpu import one_gpu
from tests.llama import reference
from tests.llama.reference import CONFIG, SOURCE
from tests.llama.test_model import PROMPTS
from tests.programs.launched import launched

NEXT_TO_CPU = pytest.mark.skipif(one_gpu.RANKS > 0, reason="the plan for ranks on one GPU has no rules for CPUs")
WORLDS = pytest.mark.parametrize("world", [1, 2])


def engine_of(comm: Communicator, graphs: bool, **options: Any) -> Engine:
    model = Llama(comm, CONFIG, max_tokens=64, **options)
    model.load(SOURCE)
    return Engine(model, pages=48, page_size=4, graphs=graphs)


def generate(comm: Communicator, draw: Draw, graphs: bool, **options: Any) -> Any:
    assert not torch.backends.cuda.matmul.allow_tf32, "products of float32 are float32's"
    engine = engine_of(comm, graphs, **options)
    found = engine.generate(PROMPTS, 6, draw)
    again = engine.generate(PROMPTS, 6, draw)
    captured = [decoder._graph is not None for decoder in engine._decoders.values()]
    assert captured == [graphs] * len(captured) != []
    engine.close()
    engine.scheduler.check()
    return [[one.tokens for one in run] for run in (found, again)], [one.reused for one in again]


@WORLDS
@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_tokens_are_those_of_the_reference_on_the_cpu(
    nccl_ranks: Ranks, world: int, graphs: bool, sequence_parallel: bool
) -> None:
    expected = [reference.generated(CONFIG, SOURCE, prompt, 6) for prompt in PROMPTS]
    run = partial(generate, sequence_parallel=sequence_parallel)
    for tokens, reused in nccl_ranks.run(run, GREEDY, graphs, world=world):
        assert tokens == [expected, expected]
        assert all(reused[at] for at in (0, 1, 3, 4, 5))


def test_drawn_tokens_are_the_same_eager_and_in_graphs_and_on_any_ranks(nccl_ranks: Ranks) -> None:
    draw = Draw(0.9, 20, 5)
    ways = [(world, graphs) for world in (1, 2) for graphs in (False, True)]
    found = [tokens for world, graphs in ways for tokens, _ in nccl_ranks.run(generate, draw, graphs, world=world)]
    assert all(tokens == found[0] for tokens in found)


def on_group(device: torch.device) -> list[list[int]]:
    comm = communicator(dist.group.WORLD, device)
    assert comm.device == device
    (tokens, _), _ = generate(comm, GREEDY, True)
    if dist.get_backend() != "commlib":
        comm.close()
    return tokens


@NEXT_TO_CPU
@pytest.mark.parametrize("backend", ["nccl", "commlib"])
def test_a_process_group_gives_the_communicator_that_the_model_runs_on(nccl_ranks: Ranks, backend: str) -> None:
    expected = [reference.generated(CONFIG, SOURCE, prompt, 6) for prompt in PROMPTS]
    assert nccl_ranks.run(launched, on_group, backend, world=2) == [expected] * 2


def test_in_bfloat16_the_ranks_agree(nccl_ranks: Ranks) -> None:
    (first, _), (second, _) = nccl_ranks.run(partial(generate, dtype=torch.bfloat16), GREEDY, True, world=2)
    assert first == second
    assert all(len(tokens) == 6 for run in first for tokens in run)


def chosen(comm: Communicator, whole: torch.Tensor, how: Sampling) -> tuple[torch.Tensor, ...]:
    part = shard(whole.shape[1], comm.rank, comm.size)
    local = whole[:, part.start : part.start + part.length].to(comm.device).contiguous()
    on_device = Sampling(*(values.to(comm.device) for values in how[:4]), how.max_top_k)
    gathered = gather_logits(comm, local, whole.shape[1])
    best = greedy(comm, local, whole.shape[1])
    return gathered.cpu(), best.cpu(), sample(comm, local, whole.shape[1], on_device).cpu()


@NEXT_TO_CPU
@WORLDS
def test_the_next_tokens_are_those_of_the_cpu(nccl_ranks: Ranks, world: int) -> None:
    whole = torch.randn(50, 131, generator=torch.Generator().manual_seed(0))
    whole[0] = 0.0
    whole[1, [65, 66, 130]] = 9.0  # on either side of where two shards meet
    rows = torch.arange(50)
    how = Sampling(torch.full((50,), 0.8), rows % 4 * 5, rows + 3, rows, 15)
    with Ranks(1, backend="shm") as cpu:
        ((_, _, drawn),) = cpu.run(chosen, whole, how)
    for gathered, best, ids in nccl_ranks.run(chosen, whole, how, world=world):
        assert torch.equal(gathered, whole)
        assert torch.equal(best, whole.argmax(-1))
        assert torch.equal(ids, drawn)
