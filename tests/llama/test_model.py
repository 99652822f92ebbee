"""The model computes what an undivided Llama does, and generates the same tokens however it is run."""

from dataclasses import replace
from functools import cache
from itertools import pairwise, product

import pytest
import torch
import torch.distributed as dist

from commlib.tp import communicator
from examples.llama import Draw, Engine, KVCache, Llama, LlamaConfig, extend_batch, gather_logits
from examples.llama.scheduler import GREEDY
from tests.llama import reference
from tests.llama.reference import CONFIG, SOURCE, model_of
from tests.on_ranks import on_ranks
from tests.pairs import pairwise as pairwise_of
from tests.programs import huggingface
from tests.programs.launched import launched, needs

STEM = [5, 6, 7, 8, 9, 10, 11, 12, 13]
PROMPTS = [STEM, [*STEM, 99, 3], [1], [130] * 20, [*STEM[:6], 2, 2], STEM]
SHAPES = {
    "plain": CONFIG,
    "tied": replace(CONFIG, tie_word_embeddings=True),
    "biased": replace(CONFIG, attention_bias=True, mlp_bias=True),
    "one KV head": replace(CONFIG, num_key_value_heads=1),
    "as many KV heads": replace(CONFIG, num_key_value_heads=8),
    "three KV heads": replace(CONFIG, num_attention_heads=6, num_key_value_heads=3),
    "wide heads": replace(CONFIG, head_dim=16, rms_norm_eps=1e-5),
    "stretched": replace(CONFIG, rope={"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.0}),
}


ONE_TOKEN = {"max_tokens": 1, "max_batch": 1}  # of a prompt, too, in every step
OPTIONS = [{}, {"reuse": False}, {"max_batch": 2}, {"max_tokens": 5, "max_batch": 5}, ONE_TOKEN]
PIECES = [130, 130, 130, *STEM, 0, 77, 64]


@torch.no_grad()
def logits_of(comm, where, options, cuts):
    """Return the logits at each cut of a prompt that is computed piece by piece."""
    model = Llama.from_folder(comm, where) if isinstance(where, str) else model_of(comm, where, **options)
    pages, table = KVCache(model, 16, 4), torch.tensor([[3, 9, 1, 7, 2, 11]], dtype=torch.int32)
    pages.k.fill_(torch.nan)  # what another request left there counts nowhere
    pages.v.fill_(torch.nan)
    results = []
    for start, end in pairwise([0, *cuts]):
        local = model(extend_batch([PIECES[start:end]], [start], table, 4), pages)
        results.append(gather_logits(comm, local, model.config.vocab_size))
    return torch.cat(results)


@pytest.mark.parametrize(("world", "name"), [*product([2], SHAPES), (1, "plain"), (4, "biased"), (4, "tied")])
def test_logits_are_those_of_an_undivided_llama(shm_ranks, world, name):
    cuts = [1, 6, 7, 15]  # a first token, a piece, a decoded token, and a piece that ends a page and begins one
    expected = reference.logits(SHAPES[name], SOURCE, PIECES)[[cut - 1 for cut in cuts]]
    for results in shm_ranks.run(logits_of, SHAPES[name], {}, cuts, world=world):
        torch.testing.assert_close(results, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("cuts", [[15], [1, 4, 11, 12]])
def test_sequence_parallel_has_the_same_logits(shm_ranks, world, cuts):
    together = shm_ranks.run(logits_of, CONFIG, {}, cuts, world=world)
    scattered = shm_ranks.run(logits_of, CONFIG, {"sequence_parallel": True}, cuts, world=world)
    torch.testing.assert_close(scattered, together, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
@needs("transformers")
@pytest.mark.parametrize("rope", [None, "llama3", "linear"])
def test_logits_are_those_of_transformers(shm_ranks, tmp_path, rope):
    scaling = {"rope_type": rope or "default", "rope_theta": 5e5}
    if rope:
        scaling["factor"] = 8.0
    if rope == "llama3":
        scaling |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
    shape = {name: getattr(CONFIG, name) for name in ("vocab_size", "hidden_size", "intermediate_size", "head_dim")}
    model = huggingface.small_llama(**shape, num_key_value_heads=2, rope_parameters=scaling)
    model.save_pretrained(tmp_path, max_shard_size="30KB")
    with torch.no_grad():
        expected = model(torch.tensor([PIECES])).logits[0, [0, 5, 14]]
    for results in shm_ranks.run(logits_of, str(tmp_path), {}, [1, 6, 15], world=2):
        torch.testing.assert_close(results, expected, atol=1e-5, rtol=1e-5)


# --- tokens -----------------------------------------------------------------------------------------------------------


@cache
def expected_tokens(count=6, config=CONFIG):
    """Return what the undivided reference generates for each prompt."""
    return [reference.generated(config, SOURCE, prompt, count) for prompt in PROMPTS]


def generate(comm, prompts, options, one_by_one=False, draw=GREEDY):
    engine = Engine(model_of(comm, max_tokens=options.pop("max_tokens", 64)), pages=24, page_size=4, **options)
    runs = [[prompt] for prompt in prompts] if one_by_one else [prompts]
    results = [one for run in runs for one in engine.generate(run, 6, draw)]
    engine.scheduler.check()
    assert engine.scheduler.unused_pages == 24
    return [one.tokens for one in results], [one.reused for one in results]


@pytest.mark.parametrize(("options", "world", "one_by_one"), pairwise_of(OPTIONS, [1, 2, 4], [False, True]), ids=str)
def test_tokens_are_the_same_on_any_ranks_with_and_without_hits_batched_and_one_by_one(
    shm_ranks, world, one_by_one, options
):
    for tokens, reused in shm_ranks.run(generate, PROMPTS, options, one_by_one, world=world):
        assert tokens == expected_tokens()
        assert any(reused) == options.get("reuse", True)


def test_drawn_tokens_are_the_same_on_any_ranks_in_any_batch_and_with_or_without_hits(shm_ranks):
    ways = [(world, one_by_one, {}) for world in (1, 4) for one_by_one in (False, True)] + [
        (2, False, {"reuse": False})
    ]
    draw = Draw(1.2, 10, 6)
    results = [shm_ranks.run(generate, PROMPTS, how, one, draw, world=world)[-1][0] for world, one, how in ways]
    assert all(tokens == results[0] for tokens in results)
    assert results[0] != expected_tokens()


@on_ranks(2)
def test_a_token_that_ends_a_text_is_its_last(comm):
    eos = expected_tokens()[0][2]
    expected = [tokens[: tokens.index(eos) + 1] if eos in tokens else tokens for tokens in expected_tokens()[:2]]
    assert len(expected[0]) == 3
    engine = Engine(model_of(comm, replace(CONFIG, eos=(eos,))), pages=24, page_size=4)
    assert [one.tokens for one in engine.generate(PROMPTS[:2], 6)] == expected


# --- groups and errors ------------------------------------------------------------------------------------------------


def on_group(device):
    comm = communicator(dist.group.WORLD, device)
    assert communicator(comm) is comm
    results = generate(comm, PROMPTS, {})
    if dist.get_backend() != "commlib":
        comm.close()
    return comm.backend, results[0]


@pytest.mark.parametrize("backend", ["gloo", "commlib"])
def test_a_process_group_gives_the_communicator_that_the_model_runs_on(shm_ranks, backend):
    for used, tokens in shm_ranks.run(launched, on_group, backend, world=2):
        assert (used, tokens) == ("shm", expected_tokens())


@on_ranks(2)
def test_wrong_prompts_are_refused_and_nothing_is_left_of_them_and_those_of_rank_0_count_on_all(comm):
    engine = Engine(model_of(comm, max_tokens=64), pages=24, page_size=4)
    table = torch.zeros(1, 20, dtype=torch.int32)
    for error, message, ask in (
        (ValueError, "token 131", lambda: engine.generate([[1], [131]])),
        (ValueError, "2040 tokens", lambda: engine.generate([[1], [1] * 2040], 9)),
        (ValueError, "26 pages", lambda: engine.generate([[1], [1] * 100], 5)),
        (ValueError, "1 draw for 2", lambda: engine.generate([[1], [1]], 5, [Draw()])),
        (ValueError, "65 new", lambda: engine.model(extend_batch([[1] * 65], [0], table, 4), engine.cache)),
        (TypeError, "2.5", lambda: engine.generate([[1], [1, 2.5]], 3)),
        (TypeError, "max_new_tokens", lambda: engine.generate([[1]], 2.5)),
        (TypeError, "seed", lambda: Draw(seed="7")),
        (ValueError, "0 or more", lambda: Draw(temperature=float("nan"))),
    ):
        with pytest.raises(error, match=message):
            ask()
    assert [one.tokens for one in engine.generate(PROMPTS if comm.rank == 0 else [], 6)] == expected_tokens()


def test_a_config_that_is_not_served_is_refused():
    for wrong, message in (
        ({"model_type": "gpt2"}, "model_type"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"rope_scaling": {"type": "yarn"}}, "rope_type"),
        ({"rope_scaling": {"type": "linear"}}, "lacks factor"),
        ({"head_dim": 7}, "head_dim is 7"),
        ({"hidden_size": None, "vocab_size": None}, "lacks vocab_size, hidden_size"),
    ):
        with pytest.raises(ValueError, match=message):
            LlamaConfig.of({**OLD, **wrong})


OLD = {
    "vocab_size": 10,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": None,
    "rope_theta": 1000.0,
    "eos_token_id": [2, 3],
}


def test_an_older_config_means_what_it_says():
    config = LlamaConfig.of(OLD)
    assert (config.num_key_value_heads, config.head_dim, config.eos) == (4, 8, (2, 3))
    assert config.rope == {"rope_theta": 1000.0, "rope_type": "default"}
