"""The model computes what an undivided Llama does, and generates the same tokens however it is run."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist

from commlib.errors import CommError
from commlib.tp import (
    Draw,
    Engine,
    KVCache,
    Llama,
    LlamaConfig,
    RandomWeights,
    Request,
    communicator,
    extend_batch,
    gather_logits,
)
from commlib.tp.scheduler import GREEDY
from tests.programs.launched import launched, needs
from tests.tp import reference
from tests.tp.reference import CONFIG

WORLDS = pytest.mark.parametrize("world", [1, 2, 4])
SOURCE = RandomWeights(1)
STEM = [5, 6, 7, 8, 9, 10, 11, 12, 13]
PROMPTS = [STEM, [*STEM, 99, 3], [1], [130] * 20, [*STEM[:6], 2, 2], STEM]
SHAPES = {
    "plain": CONFIG,
    "tied": replace(CONFIG, tie_word_embeddings=True),
    "biased": replace(CONFIG, attention_bias=True, mlp_bias=True),
    "one KV head": replace(CONFIG, num_key_value_heads=1),
    "as many KV heads": replace(CONFIG, num_key_value_heads=8),
    "wide heads": replace(CONFIG, head_dim=16, rms_norm_eps=1e-5),
    "stretched": replace(CONFIG, rope={"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.0}),
}


def model_of(comm, config=CONFIG, **options):
    model = Llama(comm, config, **options)
    model.load(SOURCE)
    return model


ONE_TOKEN = {"max_tokens": 1, "max_batch": 1}  # of a prompt, too, in every step
PIECES = [130, 130, 130, *STEM, 0, 77, 64]


@torch.no_grad()
def logits_of(comm, where, options, cuts):
    """Return the logits at each cut of a prompt that is computed piece by piece."""
    model = Llama.from_folder(comm, where) if isinstance(where, str) else model_of(comm, where, **options)
    pages, table = KVCache(model, 16, 4), torch.tensor([[3, 9, 1, 7, 2, 11]], dtype=torch.int32)
    found = []
    for start, end in pairwise([0, *cuts]):
        local = model(extend_batch([PIECES[start:end]], [start], table, 4), pages)
        found.append(gather_logits(comm, local, model.config.vocab_size))
    return torch.cat(found)


@WORLDS
@pytest.mark.parametrize("name", SHAPES)
def test_logits_are_those_of_an_undivided_llama(shm_ranks, world, name):
    cuts = [1, 6, 7, 15]  # a first token, a piece, a decoded token, and a piece that ends a page and begins one
    expected = reference.logits(SHAPES[name], SOURCE, PIECES)[[cut - 1 for cut in cuts]]
    for found in shm_ranks.run(logits_of, SHAPES[name], {}, cuts, world=world):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def logits_in_used_pages(comm):
    model, found = model_of(comm), []
    pages, table = KVCache(model, 16, 4), torch.tensor([[3, 9, 1, 7]], dtype=torch.int32)
    pages.k.fill_(torch.nan)
    pages.v.fill_(torch.nan)
    for start, end in pairwise([0, 1, 6, 7, 15]):
        local = model(extend_batch([PIECES[start:end]], [start], table, 4), pages)
        found.append(gather_logits(comm, local, model.config.vocab_size))
    return torch.cat(found)


def test_what_another_request_left_in_a_page_does_not_count_even_if_it_is_nan(shm_ranks):
    expected = reference.logits(CONFIG, SOURCE, PIECES)[[0, 5, 6, 14]]
    for found in shm_ranks.run(logits_in_used_pages, world=2):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@WORLDS
def test_logits_have_the_same_bits_on_every_rank_and_in_every_run(shm_ranks, world):
    runs = [shm_ranks.run(logits_of, CONFIG, {}, [1, 6, 7, 15], world=world) for _ in range(2)]
    assert all(torch.equal(found, runs[0][0]) for run in runs for found in run)


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("cuts", [[15], [1, 4, 11, 12]])
def test_sequence_parallel_has_the_same_logits(shm_ranks, world, cuts):
    together = shm_ranks.run(logits_of, CONFIG, {}, cuts, world=world)
    scattered = shm_ranks.run(logits_of, CONFIG, {"sequence_parallel": True}, cuts, world=world)
    torch.testing.assert_close(scattered, together, atol=1e-5, rtol=1e-5)


def test_where_kv_heads_do_not_divide_the_ranks_have_different_numbers(shm_ranks):
    config = replace(CONFIG, num_attention_heads=6, num_key_value_heads=3)
    expected = reference.logits(config, SOURCE, PIECES)[-1:]
    for found in shm_ranks.run(logits_of, config, {}, [15], world=2):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@needs("transformers")
@pytest.mark.parametrize("rope", [None, "llama3", "linear"])
def test_logits_are_those_of_transformers(shm_ranks, tmp_path, rope):
    from transformers import LlamaConfig as Theirs
    from transformers import LlamaForCausalLM

    scaling = {"rope_type": rope or "default", "rope_theta": 5e5}
    if rope:
        scaling["factor"] = 8.0
    if rope == "llama3":
        scaling |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
    torch.manual_seed(0)
    shape = {name: getattr(CONFIG, name) for name in ("vocab_size", "hidden_size", "intermediate_size", "head_dim")}
    shape |= {"num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 2, "tie_word_embeddings": False}
    model = LlamaForCausalLM(Theirs(**shape, rope_parameters=scaling)).eval()
    model.save_pretrained(tmp_path, max_shard_size="30KB")
    with torch.no_grad():
        expected = model(torch.tensor([PIECES])).logits[0, [0, 5, 14]]
    for found in shm_ranks.run(logits_of, str(tmp_path), {}, [1, 6, 15], world=2):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


# --- tokens -----------------------------------------------------------------------------------------------------------


@cache
def alone(count=6, config=CONFIG):
    """Return what the undivided reference generates for each prompt."""
    return [reference.generated(config, SOURCE, prompt, count) for prompt in PROMPTS]


def generate(comm, prompts, options, draw=GREEDY, one_by_one=False):
    engine = Engine(model_of(comm, max_tokens=options.pop("max_tokens", 64)), pages=24, page_size=4, **options)
    runs = [[prompt] for prompt in prompts] if one_by_one else [prompts]
    found = [one for run in runs for one in engine.generate(run, 6, draw)]
    engine.scheduler.check()
    assert engine.scheduler.unused_pages == 24
    return [one.tokens for one in found], [one.reused for one in found]


@WORLDS
@pytest.mark.parametrize("one_by_one", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"reuse": False}, {"max_batch": 2}, {"max_tokens": 5, "max_batch": 5}, ONE_TOKEN], ids=str
)
def test_tokens_are_the_same_on_any_ranks_with_and_without_hits_batched_and_one_by_one(
    shm_ranks, world, one_by_one, options
):
    for tokens, reused in shm_ranks.run(generate, PROMPTS, options, GREEDY, one_by_one, world=world):
        assert tokens == alone()
        assert any(reused) == options.get("reuse", True)


def logits_of_tokens(comm, reuse):
    """Return the logits from which each new token of each prompt was chosen, and what was reused."""
    engine = Engine(model_of(comm, max_tokens=1), pages=24, page_size=4, max_batch=1, reuse=reuse)
    run, seen, found, reused = engine._run, [], [], 0

    def watched(batch):
        seen.append(run(batch))
        return seen[-1]

    engine._run = watched
    for prompt in PROMPTS:
        (one,) = engine.generate([prompt], 6)
        reused += one.reused
        found.append(torch.stack([logits for logits, _ in seen[-6:]]))
    return found, reused


@pytest.mark.parametrize("world", [1, 2])
def test_steps_of_one_token_have_the_same_bits_with_and_without_hits(shm_ranks, world):
    (without, none), *_ = shm_ranks.run(logits_of_tokens, False, world=world)
    (found, some), *_ = shm_ranks.run(logits_of_tokens, True, world=world)
    assert none == 0 < some
    assert all(torch.equal(a, b) for a, b in zip(found, without, strict=True))


@pytest.mark.parametrize("draw", [Draw(0.9, 0, 5), Draw(1.2, 10, 6)], ids=str)
def test_drawn_tokens_are_the_same_on_any_ranks_in_any_batch_and_with_or_without_hits(shm_ranks, draw):
    ways = [(world, one_by_one, {}) for world in (1, 2, 4) for one_by_one in (False, True)]
    ways += [(2, False, {"reuse": False}), (2, False, {"max_tokens": 5, "max_batch": 5})]
    found = [shm_ranks.run(generate, PROMPTS, how, draw, one, world=world)[-1][0] for world, one, how in ways]
    assert all(tokens == found[0] for tokens in found)
    assert found[0] != alone()


def test_each_prompt_may_be_drawn_in_its_own_way(shm_ranks):
    draws = [Draw(), Draw(2.0, 0, 1), Draw(), Draw(2.0, 4, 1), Draw(), Draw()]
    (tokens, _), _ = shm_ranks.run(generate, PROMPTS, {}, draws, world=2)
    assert [tokens[at] == alone()[at] for at in range(6)] == [True, False, True, False, True, True]


def arrivals(comm, seed):
    """Let requests come at random steps, and return each with its prompt."""
    chance = random.Random(seed)
    engine = Engine(model_of(comm, max_tokens=chance.randrange(4, 17)), pages=20, page_size=4, max_batch=4)
    requests = []
    for _ in range(30):
        if chance.random() < 0.4:
            prompt = PROMPTS[chance.randrange(len(PROMPTS))]
            requests.append(Request(prompt, chance.randrange(1, 7)))
            engine.scheduler.add(requests[-1])
        engine.step()
    while engine.step():
        pass
    engine.scheduler.check()
    return [(request.prompt, request.new_tokens, request.reused) for request in requests]


@pytest.mark.parametrize("seed", range(3))
def test_requests_that_come_at_any_step_get_what_each_gets_alone(shm_ranks, seed):
    first, second = shm_ranks.run(arrivals, seed, world=2)
    assert first == second
    assert sum(reused for _, _, reused in first) > 0
    for prompt, tokens, _ in first:
        assert tokens == alone()[PROMPTS.index(prompt)][: len(tokens)]


def stopped(comm, eos):
    engine = Engine(model_of(comm, replace(CONFIG, eos=(eos,))), pages=24, page_size=4)
    return [one.tokens for one in engine.generate(PROMPTS[:2], 6)]


def test_a_token_that_ends_a_text_is_its_last(shm_ranks):
    eos = alone()[0][2]
    expected = [tokens[: tokens.index(eos) + 1] if eos in tokens else tokens for tokens in alone()[:2]]
    assert len(expected[0]) == 3
    assert shm_ranks.run(stopped, eos, world=2) == [expected] * 2


def rank_0_asks(comm):
    engine = Engine(model_of(comm), pages=24, page_size=4)
    return engine.generate(PROMPTS if comm.rank == 0 else [], 6)


def test_the_prompts_of_rank_0_count_on_all_ranks(shm_ranks):
    for found in shm_ranks.run(rank_0_asks, world=2):
        assert [one.tokens for one in found] == alone()


# --- groups and errors ------------------------------------------------------------------------------------------------


def on_group(device):
    comm = communicator(dist.group.WORLD, device)
    assert communicator(comm) is comm
    found = generate(comm, PROMPTS, {})
    if dist.get_backend() != "commlib":
        comm.close()
    return comm.backend, found[0]


@pytest.mark.parametrize("backend", ["gloo", "commlib"])
def test_a_process_group_gives_the_communicator_that_the_model_runs_on(shm_ranks, backend):
    for used, tokens in shm_ranks.run(launched, on_group, backend, world=2):
        assert (used, tokens) == ("shm", alone())


def test_over_torch_the_tokens_are_the_same(torch_ranks):
    for tokens, _ in torch_ranks.run(generate, PROMPTS, {}, world=2):
        assert tokens == alone()


def test_where_the_arena_is_full_the_buffer_is_plain_memory(shm_ranks):
    for tokens, _ in shm_ranks.run(generate_with_full_arena, world=2):
        assert tokens == alone()


def generate_with_full_arena(comm):
    taken, size = [], 1 << 30
    while size:
        try:
            taken.append(comm.empty(size, dtype=torch.uint8))
        except CommError:
            size //= 2
    model = model_of(comm)
    assert not comm._backend.holds(model.buffer)
    del model
    return generate(comm, PROMPTS, {})


def test_wrong_prompts_are_refused_and_nothing_is_left_of_them(shm_ranks):
    for said, tokens in shm_ranks.run(refused, world=2):
        assert tokens == alone()
        assert "the prompt has token 131, but tokens are from 0 to 130" in said[0]
        assert "2040 tokens and 9 new ones are 2049" in said[1]
        assert "may need 26 pages" in said[2]
        assert "1 draw for 2 prompts" in said[3]
        assert "the batch has 65 new tokens, but max_tokens is 64" in said[4]


def refused(comm):
    engine, said = Engine(model_of(comm, max_tokens=64), pages=24, page_size=4), []
    table = torch.zeros(1, 20, dtype=torch.int32)
    for ask in (
        lambda: engine.generate([[1], [131]]),
        lambda: engine.generate([[1], [1] * 2040], 9),
        lambda: engine.generate([[1], [1] * 100], 5),
        lambda: engine.generate([[1], [1]], 5, [Draw()]),
        lambda: engine.model(extend_batch([[1] * 65], [0], table, 4), engine.cache),
    ):
        with pytest.raises(ValueError) as caught:
            ask()
        said.append(str(caught.value))
    return said, [one.tokens for one in engine.generate(PROMPTS, 6)]


def asked_wrongly(comm):
    engine, said = Engine(model_of(comm), pages=24, page_size=4), []
    for prompts, count in (([[1], [1, 2.5]], 3), ([[1], ["a"]], 3), ([[1]], 2.5)):
        with pytest.raises(TypeError) as caught:
            engine.generate(prompts, count)
        said.append(str(caught.value))
    drawn = [engine.generate([[1, 2]], 6, Draw(0.9, top_k, seed)) for top_k, seed in ((0, 5), (2**80, 5 + 2**70))]
    prompts = [torch.tensor(prompt) for prompt in PROMPTS]
    return said, drawn[0] == drawn[1], [one.tokens for one in engine.generate(prompts, 6)]


def test_numbers_of_another_type_are_refused_and_large_ones_are_taken_and_nothing_is_left_of_them(shm_ranks):
    for said, same, tokens in shm_ranks.run(asked_wrongly, world=2):
        assert said[0] == "a token of the prompt is 2.5, but must be an int"
        assert said[1] == "a token of the prompt is 'a', but must be an int"
        assert said[2] == "max_new_tokens is 2.5, but must be an int"
        assert same and tokens == alone()


@pytest.mark.parametrize("wrong", [{"top_k": 2.5}, {"seed": "7"}])
def test_a_draw_of_another_type_is_refused(wrong):
    (name,) = wrong
    with pytest.raises(TypeError, match=f"{name} is .*, but must be an int"):
        Draw(**wrong)


@pytest.mark.parametrize("wrong", [{"temperature": -1.0}, {"temperature": float("nan")}, {"top_k": -1}])
def test_a_draw_that_cannot_be_is_refused(wrong):
    with pytest.raises(ValueError, match="both must be 0 or more"):
        Draw(**wrong)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"model_type": "gpt2"}, "model_type of the config is 'gpt2', but only 'llama'"),
        ({"hidden_act": "gelu"}, "hidden_act of the config is 'gelu'"),
        (
            {"rope_scaling": {"type": "yarn"}},
            "rope_type of the config is 'yarn', but must be one of default, linear, llama3",
        ),
        ({"rope_scaling": {"type": "linear"}}, "rope_type 'linear' of the config lacks factor; take the config.json"),
        ({"head_dim": 7}, "head_dim is 7, but must be even"),
        ({"hidden_size": None, "vocab_size": None}, "the config lacks vocab_size, hidden_size; take the config.json"),
    ],
)
def test_a_config_that_is_not_served_is_refused(wrong, said):
    with pytest.raises(ValueError, match=said):
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
