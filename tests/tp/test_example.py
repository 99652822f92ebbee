"""examples/generate.py loads a folder as Hugging Face has it; docs/tensor_parallel.md runs it on made-up weights."""

from __future__ import annotations

import argparse
import contextlib
import io

import pytest
import torch

from examples.generate import generate
from tests.programs.launched import needs

pytestmark = pytest.mark.slow

TEXT = "ranks that add the same requests and are told the same tokens stay equal: nothing here depends on a clock"


def save(folder):
    """Write a small model and a tokenizer, and return what transformers generates."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM

    words = sorted(set(TEXT.split()))
    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(words)}, unk_token=words[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    torch.manual_seed(0)
    shape = {"vocab_size": len(words), "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "eos_token_id": None, "initializer_range": 0.2}
    model = LlamaForCausalLM(LlamaConfig(**shape, **heads)).eval()
    model.save_pretrained(folder)
    ids = tokenizer.encode(TEXT).ids
    with torch.no_grad():
        for _ in range(8):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return tokenizer.decode(ids[-8:])


def printed(comm, args):
    with contextlib.redirect_stdout(io.StringIO()) as said:
        generate(comm, args)
    return said.getvalue()


@needs("transformers")
def test_the_example_says_of_a_folder_what_transformers_does(shm_ranks, tmp_path):
    expected = save(tmp_path)
    numbers = {"max_new_tokens": 8, "temperature": 0.0, "top_k": 0, "seed": 0}
    args = argparse.Namespace(model=str(tmp_path), dtype=torch.float32, prompts=[TEXT, TEXT + " equal"], **numbers)
    first, second = shm_ranks.run(printed, args, world=2)
    count = len(TEXT.split())
    lines = [f"{TEXT!r}: {count} tokens, 0 of them reused", f"  {expected!r}"]
    assert first.splitlines()[:2] == lines
    assert f"{count + 1} tokens, {count // 16 * 16} of them reused" in first
    assert second == ""
