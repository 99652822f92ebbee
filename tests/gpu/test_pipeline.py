"""Chunks with communication beside the products give what layers give at once: eager, replayed, and in the model."""

import ctypes
from typing import Any

import pytest
import torch

from commlib.communicator import Communicator
from commlib.tools.testing import Ranks
from commlib.tp import ColumnParallelLinear, Pipeline, RowParallelLinear, gather_rows
from commlib.tp.pipeline import _cublas
from examples.llama import Engine, Llama
from tests.gpu.steady import pinned
from tests.llama import reference
from tests.llama.reference import CONFIG, SOURCE
from tests.on_ranks import on_ranks

PROMPTS = [[(37 * at + 5) % CONFIG.vocab_size for at in range(count)] for count in (9, 1, 300, 301)]
CAN_DIFFER = {torch.float32: 1e-4, torch.bfloat16: 5e-2}  # a product of other shape adds up in another order


class Block:
    """A column-parallel layer and a row-parallel one behind it, between tokens that are divided over the ranks."""

    def __init__(self, comm: Communicator, tokens: int, dtype: torch.dtype) -> None:
        self.comm, self.tokens = comm, tokens
        self.column = ColumnParallelLinear(comm, 256, 512, bias=True, dtype=dtype)
        self.row = RowParallelLinear(comm, 512, 256, bias=True, dtype=dtype)
        self.column.load(SOURCE, "column")
        self.row.load(SOURCE, "row")
        self.own = torch.empty(tokens // comm.size, 256, dtype=dtype, device=comm.device)

    def set(self, step: int) -> None:
        generator = torch.Generator(self.comm.device).manual_seed(100 * step + self.comm.rank)
        self.own.normal_(generator=generator)

    def run(self, pipeline: Pipeline | None) -> torch.Tensor:
        return self.row.scattered(self.column.gathered(self.own, self.tokens, pipeline), pipeline)

    def all_rows(self, rows: torch.Tensor) -> torch.Tensor:
        return gather_rows(self.comm, rows, rows.new_empty(self.tokens, 256)).float().cpu()


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("dtype", CAN_DIFFER, ids=str)
@on_ranks(2, "nccl_ranks")
@torch.no_grad()
def test_layers_in_chunks_give_what_they_give_at_once(
    comm: Communicator, dtype: torch.dtype, count: int, captured: bool
) -> None:
    block, pipeline = Block(comm, 512 * comm.size, dtype), Pipeline(comm, {0: count}, max_sms=8)
    block.set(0)
    out = block.run(pipeline)
    side: Any = comm.dispatcher.executor
    assert side._side.priority < 0, "blocks of calls do not wait for all blocks of products"
    graph = torch.cuda.CUDAGraph() if captured else None
    if graph is not None:
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            out = block.run(pipeline)
    for step in range(20):
        block.set(step)
        if graph is None:
            out = block.run(pipeline)
        else:
            graph.replay()
        at_once, in_chunks = block.all_rows(block.run(None)), block.all_rows(out)
        assert (in_chunks - at_once).norm() / at_once.norm() < CAN_DIFFER[dtype]
    comm.check()


def generate(comm: Communicator, rule: dict[int, int], graphs: bool, engines: bool) -> list[list[int]]:
    pipeline = Pipeline(comm, rule, max_sms=8, multiple=32, engines=engines)
    model = Llama(comm, CONFIG, max_tokens=640, pipeline=pipeline)
    model.load(SOURCE)
    engine = Engine(model, pages=200, page_size=4, graphs=graphs)
    found = [[one.tokens for one in engine.generate(PROMPTS, 6)] for _ in range(2)]
    engine.close()
    comm.check()
    assert found[0] == found[1]
    return found[0]


@pytest.mark.parametrize("engines", [False, True])
@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("rule", [{64: 2}, {1: 5}], ids=str)
def test_prompts_in_chunks_give_the_tokens_of_the_reference_on_the_cpu(
    nccl_ranks: Ranks, rule: dict[int, int], graphs: bool, engines: bool
) -> None:
    expected = [reference.generated(CONFIG, SOURCE, prompt, 6) for prompt in PROMPTS]
    assert nccl_ranks.run(generate, rule, graphs, engines, world=2) == [expected] * 2


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("dtype", CAN_DIFFER, ids=str)
@on_ranks(2, "nccl_ranks")
@torch.no_grad()
def test_rows_that_copy_engines_move_are_those_of_a_layer_computed_at_once(
    comm: Communicator, dtype: torch.dtype, count: int, captured: bool
) -> None:
    pipeline = Pipeline(comm, multiple=32, engines=True)
    model = Llama(comm, CONFIG, dtype=dtype, max_tokens=512, pipeline=pipeline)
    model.load(SOURCE)
    run, graph = model.between(512), torch.cuda.CUDAGraph() if captured else None
    run()
    at_once = model.buffer.float().cpu()
    pipeline.rule = {0: count}
    with pinned(comm, "all_to_all", "engine_pull"), pinned(comm, "all_gather", "engine_pull"):
        run()
        if graph is not None:
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                run()
        for step in range(20):
            model.buffer.fill_(torch.nan)
            if step % 2 == comm.rank:
                torch.cuda._sleep(1_000_000)
            run() if graph is None else graph.replay()
            assert (model.buffer.float().cpu() - at_once).norm() / at_once.norm() < CAN_DIFFER[dtype]
    pipeline.local.check()
    comm.check()


@on_ranks(2, "nccl_ranks")
def test_products_beside_calls_leave_their_multiprocessors(comm: Communicator) -> None:
    handle, found = ctypes.c_void_p(torch.cuda.current_blas_handle()), ctypes.c_int()
    a, b = (torch.randn(512, 512, device=comm.device, dtype=torch.bfloat16) for _ in range(2))

    def target() -> int:
        assert _cublas().cublasGetSmCountTarget(handle, ctypes.byref(found)) == 0
        return found.value

    targets = [target()]
    with Pipeline(comm, max_sms=8).overlap():
        targets.append(target())
        beside = a @ b
    targets.append(target())
    there = torch.cuda.get_device_properties(0).multi_processor_count
    assert targets == [0, there - 8, 0]
    assert torch.allclose(beside, a @ b, rtol=2e-2, atol=2e-1)
