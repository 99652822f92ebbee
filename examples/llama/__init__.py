"""A small Llama on commlib.tp's layers, with a paged cache and a scheduler; `generate.py` runs it."""

from __future__ import annotations

from examples.llama.batch import Batch, attend, decode_batch, extend_batch
from examples.llama.config import LlamaConfig
from examples.llama.engine import Engine, Generated
from examples.llama.logits import Sampling, gather_logits, greedy, sample
from examples.llama.model import KVCache, Llama
from examples.llama.scheduler import Draw, Request, Scheduler

__all__ = [
    "Batch",
    "Draw",
    "Engine",
    "Generated",
    "KVCache",
    "Llama",
    "LlamaConfig",
    "Request",
    "Sampling",
    "Scheduler",
    "attend",
    "decode_batch",
    "extend_batch",
    "gather_logits",
    "greedy",
    "sample",
]
