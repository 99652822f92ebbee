"""The shape of a Llama: what a Hugging Face config.json says of it."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

# What each kind of rotary positions needs.
ROPES = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}
SHAPE = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")


@dataclass(frozen=True)
class LlamaConfig:
    """A Llama's shape, by the names of config.json."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 2048
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    rope: dict[str, Any] = field(default_factory=lambda: {"rope_type": "default", "rope_theta": 10000.0})
    eos: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.head_dim % 2:
            raise ValueError(f"head_dim is {self.head_dim}, but must be even: positions turn pairs of features")

    @classmethod
    def read(cls, path: str | Path) -> LlamaConfig:
        """Read a config.json, or that of a folder."""
        path = Path(path)
        path = path / "config.json" if path.is_dir() else path
        return cls.of(json.loads(path.read_text(encoding="utf-8")), str(path))

    @classmethod
    def of(cls, raw: dict[str, Any], place: str = "the config") -> LlamaConfig:
        """Return the shape that a dictionary of config.json describes."""
        if (kind := raw.get("model_type", "llama")) != "llama":
            raise ValueError(f"model_type of {place} is {kind!r}, but only 'llama' is served")
        if (act := raw.get("hidden_act", "silu")) != "silu":
            raise ValueError(f"hidden_act of {place} is {act!r}, but only 'silu' is served")
        _has(raw, SHAPE, place)
        eos = raw.get("eos_token_id")
        values = {name: raw[name] for name in cls.__dataclass_fields__ if raw.get(name) is not None}
        values.setdefault("num_key_value_heads", raw["num_attention_heads"])
        values.setdefault("head_dim", raw["hidden_size"] // raw["num_attention_heads"])
        stops = () if eos is None else (eos,) if isinstance(eos, int) else tuple(eos)
        return cls(**{**values, "rope": _rope(raw, place), "eos": stops})


def _rope(raw: dict[str, Any], place: str) -> dict[str, Any]:
    """Return the rotary parameters, which newer configs have in rope_parameters, older ones in two places."""
    rope = {"rope_theta": raw.get("rope_theta", 10000.0), **(raw.get("rope_scaling") or {})}
    rope |= raw.get("rope_parameters") or {}
    rope.setdefault("rope_type", rope.get("type", "default"))
    if rope["rope_type"] not in ROPES:
        raise ValueError(f"rope_type of {place} is {rope['rope_type']!r}, but must be one of {', '.join(ROPES)}")
    _has(rope, ROPES[rope["rope_type"]], f"rope_type {rope['rope_type']!r} of {place}")
    return rope


def _has(raw: dict[str, Any], names: tuple[str, ...], place: str) -> None:
    if missing := [name for name in names if raw.get(name) is None]:
        raise ValueError(f"{place} lacks {', '.join(missing)}; take the config.json that came with the weights")


def frequencies(config: LlamaConfig) -> Tensor:
    """Return by how much each pair of a head's features turns from one position to the next."""
    rope, width = config.rope, config.head_dim
    turns: Tensor = 1.0 / rope["rope_theta"] ** (torch.arange(0, width, 2, dtype=torch.int64).float() / width)
    if rope["rope_type"] == "linear":
        turns /= rope["factor"]
    if rope["rope_type"] == "llama3":  # slow pairs are stretched, fast ones are not, those between are blended
        whole_turns = rope["original_max_position_embeddings"] * turns / (2 * math.pi)
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        unscaled = ((whole_turns - low) / (high - low)).clamp(0, 1)
        turns *= (1 - unscaled) / rope["factor"] + unscaled
    return turns
