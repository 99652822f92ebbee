"""A Llama in plain torch, undivided and without a cache, on the weights that a Source gives."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from commlib.communicator import Communicator
from commlib.tp import RandomWeights, Source
from examples.llama import Llama, LlamaConfig
from examples.llama.config import frequencies

CONFIG = LlamaConfig(
    vocab_size=131,  # no number of ranks divides it
    hidden_size=48,
    intermediate_size=86,
    num_hidden_layers=2,
    num_attention_heads=8,
    num_key_value_heads=2,
    head_dim=8,
)
SOURCE = RandomWeights(1)


def model_of(comm: Communicator, config: LlamaConfig = CONFIG, **options: Any) -> Llama:
    """Return the model to compare, with the weights of SOURCE."""
    model = Llama(comm, config, **options)
    model.load(SOURCE)
    return model


def logits(config: LlamaConfig, source: Source, tokens: list[int]) -> Tensor:
    """Return the logits after every token."""
    hidden, features = config.hidden_size, config.num_attention_heads * config.head_dim
    keys = config.num_key_value_heads * config.head_dim
    x = source.read("model.embed_tokens.weight", (config.vocab_size, hidden))[tokens]
    for number in range(config.num_hidden_layers):
        name = f"model.layers.{number}"

        def linear(part: str, inputs: int, outputs: int, of: Tensor, bias: bool, at: str = name) -> Tensor:
            weight = source.read(f"{at}.{part}.weight", (outputs, inputs))
            return F.linear(of, weight, source.read(f"{at}.{part}.bias", (outputs,)) if bias else None)

        y = norm(config, source, f"{name}.input_layernorm", x)
        bias = config.attention_bias
        q = linear("self_attn.q_proj", hidden, features, y, bias)
        k, v = (linear(f"self_attn.{part}_proj", hidden, keys, y, bias) for part in "kv")
        x = x + linear("self_attn.o_proj", features, hidden, attention(config, q, k, v), bias)
        y = norm(config, source, f"{name}.post_attention_layernorm", x)
        gate, up = (
            linear(f"mlp.{part}_proj", hidden, config.intermediate_size, y, config.mlp_bias) for part in ("gate", "up")
        )
        x = x + linear("mlp.down_proj", config.intermediate_size, hidden, F.silu(gate) * up, config.mlp_bias)
    head = "model.embed_tokens" if config.tie_word_embeddings else "lm_head"
    return norm(config, source, "model.norm", x) @ source.read(f"{head}.weight", (config.vocab_size, hidden)).t()


def norm(config: LlamaConfig, source: Source, name: str, x: Tensor) -> Tensor:
    weight = source.read(f"{name}.weight", (config.hidden_size,))
    return x / (x.square().mean(-1, keepdim=True) + config.rms_norm_eps).sqrt() * weight


def attention(config: LlamaConfig, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    count, sharing = len(q), config.num_attention_heads // config.num_key_value_heads
    angles = torch.arange(count)[:, None] * frequencies(config)
    turn = torch.polar(torch.ones_like(angles), angles)[:, None]

    def turned(x: Tensor) -> Tensor:
        first, second = x.view(count, -1, config.head_dim).chunk(2, -1)
        pairs = torch.complex(first, second) * turn
        return torch.cat([pairs.real, pairs.imag], -1)

    k, v = (x.repeat_interleave(sharing, 1) for x in (turned(k), v.view(count, -1, config.head_dim)))
    scores = torch.einsum("qhd,khd->hqk", turned(q), k) / config.head_dim**0.5
    later = torch.ones(count, count, dtype=torch.bool).triu(1)
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(later, -torch.inf).softmax(-1), v).flatten(1)


def generated(config: LlamaConfig, source: Source, prompt: list[int], count: int) -> list[int]:
    """Return the tokens that the largest logits choose."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(logits(config, source, tokens)[-1].argmax()))
    return tokens[len(prompt) :]
