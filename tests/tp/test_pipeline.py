"""What is computed in chunks, with communication beside the products, is what is computed one after the other."""

import threading
import time
from itertools import product
from types import SimpleNamespace

import pytest
import torch

from commlib.collectives.all_reduce_rms_norm import normalised
from commlib.tools.tune.pipeline import tune_pipeline
from commlib.tp import ColumnParallelLinear, Pipeline, RowParallelLinear, gather_rows, shard
from commlib.tp.norm import add_and_normalise
from examples.llama import Engine, KVCache, extend_batch, gather_logits
from tests.llama import reference
from tests.llama.reference import CONFIG, SOURCE, model_of
from tests.on_ranks import on_ranks
from tests.pairs import pairwise

PROMPTS = [[5, 6, 7, 8, 9, 10, 11, 12, 13], [1], [130] * 20, [5, 6, 7, 2, 2]]
# --- which chunks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [0, 1, 127, 128, 1000, 1024, 4096, 5003])
def test_chunks_are_all_tokens_in_order_each_a_multiple_but_the_last(tokens):
    for chunks, parts in product((1, 2, 3, 4, 8, (1, 2, 1), (5, 1)), (1, 2, 4)):
        cuts = Pipeline(None, {0: chunks}).cuts(tokens, parts)
        assert [row for cut in cuts for row in range(cut.start, cut.stop)] == list(range(tokens // parts))
        assert 1 <= len(cuts) <= (chunks if isinstance(chunks, int) else len(chunks))
        assert all((cut.stop - cut.start) % (128 // parts) == 0 for cut in cuts[:-1])


def test_chunks_begin_with_the_tokens_that_the_rule_names():
    assert [len(Pipeline(None, {256: 2}).cuts(tokens)) for tokens in (255, 256)] == [1, 2]


def test_a_chunk_waits_for_its_communication_behind_what_the_next_one_computes():
    done = []

    def program(chunk):
        done.append(f"product {chunk}")
        yield
        done.append(f"wait {chunk}")
        yield
        done.append(f"end {chunk}")

    Pipeline(None).run(program(chunk) for chunk in "abc")
    expected = "product a, product b, wait a, product c, wait b, end a, wait c, end b, end c"
    assert ", ".join(done) == expected


# --- layers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "world", "bias"), pairwise([(0,), (7,), (31,), (64,), (100,), (16, 3)], [1, 2, 4], [False, True])
)
@on_ranks()
def test_sequence_parallel_layers_in_chunks_give_what_they_give_at_once(comm, world, bias, shape):
    tokens, *_ = shape
    column = ColumnParallelLinear(comm, 12, 13, bias=bias)
    row = RowParallelLinear(comm, 13, 6, bias=bias)
    column.load(SOURCE, "column")
    row.load(SOURCE, "row")
    part = shard(tokens, comm.rank, comm.size)
    x = torch.randn(*shape, 12, generator=torch.Generator().manual_seed(0))
    found = []
    with comm.split(0) as beside:
        for pipeline in (None, *(Pipeline(beside, {0: count}, max_sms=8, multiple=4) for count in (1, 2, 3, 8))):
            middle = column.gathered(x[part.start : part.start + part.length], tokens, pipeline)
            rows = row.scattered(middle, pipeline)
            found.append((middle, rows, gather_rows(comm, rows, rows.new_empty(tokens, *rows.shape[1:]))))
        assert torch.equal(found[0][0], column(x))
        for in_chunks in found[1:]:
            torch.testing.assert_close(in_chunks, found[0])
        used = beside.dispatcher.executor.used
        assert used == (tokens > 0 and tokens % world == 0), "where every rank has as many rows"


# --- the model --------------------------------------------------------------------------------------------------------


@torch.no_grad()
def logits_of(comm, rule, multiple, prompt, max_tokens, engines=False):
    pipeline = Pipeline(comm, rule, max_sms=8, multiple=multiple, engines=engines)
    model = model_of(comm, max_tokens=max_tokens, pipeline=pipeline)
    model.buffer.fill_(torch.nan)  # what nobody writes must count nowhere
    pages, table = KVCache(model, 16, 4), torch.arange(16, dtype=torch.int32)[None]
    local = model(extend_batch([prompt], [0], table, 4), pages)
    return gather_logits(comm, local, CONFIG.vocab_size)


def same_logits(ranks, world, room, chunks, engines=False):
    """Compare what ranks compute in so many chunks of a multiple of rows with what an undivided Llama does."""
    (tokens, max_tokens), (count, multiple) = room, chunks
    prompt = [(37 * at) % CONFIG.vocab_size for at in range(tokens)]
    expected = reference.logits(CONFIG, SOURCE, prompt)[-1:]
    for found in ranks.run(logits_of, {0: count}, multiple, prompt, max_tokens, engines, world=world):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("room", "chunks", "world"),
    pairwise([(1, 64), (13, 13), (13, 14), (13, 64), (48, 48)], [(2, 4), (3, 3), (8, 1), (60, 1)], [1, 2, 4]),
)
def test_logits_of_a_prompt_in_chunks_are_those_of_an_undivided_llama(shm_ranks, world, chunks, room):
    same_logits(shm_ranks, world, room, chunks)


@pytest.mark.parametrize(("world", "room", "count"), pairwise([1, 2, 4], [(1, 64), (13, 13), (48, 48)], [2, 8]))
def test_with_copy_engines_logits_of_a_prompt_in_chunks_are_the_same(shm_ranks, world, room, count):
    same_logits(shm_ranks, world, room, (count, 4), engines=True)


@pytest.mark.parametrize("ranks", [1, 2, 4, 5, 6, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@torch.no_grad()
def test_parts_of_any_number_of_ranks_are_added_up_with_the_residual_and_normalised(comm, ranks, dtype):
    generator = torch.Generator().manual_seed(ranks)
    parts, residual = torch.randn(ranks, 5, 24, generator=generator), torch.randn(5, 24, generator=generator)
    parts, residual, weight = parts.to(dtype), residual.to(dtype), torch.arange(24).to(dtype)
    sums = parts.float().sum(0).to(dtype)
    for given, out in ((None, torch.empty_like(residual)), (residual.clone(), parts[-1])):
        h = add_and_normalise(comm, parts, given, weight, out=out, eps=1e-5, weight_bias=1.0)
        assert given is None or h is given
        total = sums + (0 if given is None else residual)
        expected = normalised(total, weight, 1e-5, 1.0, None, False).to(dtype)
        torch.testing.assert_close((h, out), (total, expected))


@pytest.mark.slow
def test_over_torch_logits_of_a_prompt_in_chunks_are_the_same(torch_ranks):
    same_logits(torch_ranks, 2, (13, 64), (3, 4))


def generate(comm, rule):
    before = threading.active_count()
    with comm.split(0) as made:
        model = model_of(comm, max_tokens=64, pipeline=Pipeline(made, rule, multiple=4))
        engine = Engine(model, pages=24, page_size=4)
        tokens = [one.tokens for one in engine.generate(PROMPTS, 6)]
        beside = made.dispatcher.executor.used
    waited = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < waited:
        time.sleep(0.01)
    return tokens, beside, threading.active_count() - before


@pytest.mark.parametrize("world", [1, 2])
def test_prompts_run_in_chunks_and_decode_steps_do_not_and_no_thread_stays(shm_ranks, world):
    expected = [reference.generated(CONFIG, SOURCE, prompt, 6) for prompt in PROMPTS]
    for rule, used in (({8: 3}, True), ({100: 3}, False)):
        assert shm_ranks.run(generate, rule, world=world) == [(expected, used, 0)] * world


# --- measuring a rule -------------------------------------------------------------------------------------------------


@on_ranks(2)
def test_a_measured_rule_has_chunks_where_they_are_faster_and_one_where_they_are_not(comm):
    """Measure work that is faster in chunks from 200 tokens on, three most of all, and slower in chunks below."""
    pipeline = Pipeline(comm, multiple=1)

    def prepare(tokens):
        chunks = {1: 4, 2: 3, 3: 1, 4: 2} if tokens >= 200 else {1: 1, 2: 3, 3: 3, 4: 4}
        return lambda: time.sleep(chunks[len(pipeline.cuts(tokens))] * 4e-3)

    found = tune_pipeline(pipeline, prepare, [200, 100, 3], chunks=(2, (1, 2, 1), 4), seconds=0.1)
    assert found == pipeline.rule
    with pytest.raises(ZeroDivisionError):
        tune_pipeline(pipeline, lambda tokens: lambda: 1 / 0, [7])
    assert found == pipeline.rule, "what failed leaves the rule"
    assert found == {3: 1, 100: 1, 200: (1, 2, 1)}


# --- multiprocessors that products leave, by cuBLAS's target and torch's carve-out ------------------------------------


@pytest.fixture
def targets(monkeypatch):
    """Stand in for a GPU; return what cuBLAS was told, and the status that it answers with."""
    told = SimpleNamespace(values=[], status=0)

    def set_target(handle, value):
        assert handle.value == 77
        told.values.append(value.value)
        return told.status

    monkeypatch.setattr("commlib.tp.pipeline._cublas", lambda: SimpleNamespace(cublasSetSmCountTarget=set_target))
    monkeypatch.setattr(torch.cuda, "current_blas_handle", lambda: 77)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda: SimpleNamespace(multi_processor_count=132))
    return told


@pytest.mark.parametrize(
    ("device", "limit", "left"), [("cuda", 8, [124, 0]), ("cuda", 0, []), ("cuda", 132, []), ("cpu", 8, [])]
)
def test_products_are_planned_for_what_calls_leave_on_gpus_and_for_all_again_also_after_an_error(
    targets, device, limit, left
):
    def program():
        assert targets.values == left[:1]
        assert torch._C._get_sm_carveout_experimental() == (limit if left else None)
        yield 1 / 0

    with pytest.raises(ZeroDivisionError):
        Pipeline(SimpleNamespace(device=torch.device(device)), max_sms=limit).run([program()])
    assert targets.values == left
    assert torch._C._get_sm_carveout_experimental() is None
