"""Tensor-parallel inference on a Communicator: layers, a Llama-shaped model, and what generates with it."""

from __future__ import annotations

from commlib.tp.batch import Batch, attend, decode_batch, extend_batch
from commlib.tp.config import LlamaConfig
from commlib.tp.embedding import VocabParallelEmbedding
from commlib.tp.engine import Engine, Generated
from commlib.tp.groups import communicator
from commlib.tp.linear import ColumnParallelLinear, RowParallelLinear
from commlib.tp.logits import Sampling, gather_logits, greedy, sample
from commlib.tp.model import KVCache, Llama
from commlib.tp.norm import FusedResidualNorm
from commlib.tp.pipeline import Pipeline
from commlib.tp.scheduler import Draw, Request, Scheduler
from commlib.tp.sequence import gather_rows, scatter_rows
from commlib.tp.shard import Shard, heads, shard
from commlib.tp.weights import RandomWeights, SafeTensors, Source

__all__ = [
    "Batch",
    "ColumnParallelLinear",
    "Draw",
    "Engine",
    "FusedResidualNorm",
    "Generated",
    "KVCache",
    "Llama",
    "LlamaConfig",
    "Pipeline",
    "RandomWeights",
    "Request",
    "RowParallelLinear",
    "SafeTensors",
    "Sampling",
    "Scheduler",
    "Shard",
    "Source",
    "VocabParallelEmbedding",
    "attend",
    "communicator",
    "decode_batch",
    "extend_batch",
    "gather_logits",
    "gather_rows",
    "greedy",
    "heads",
    "sample",
    "scatter_rows",
    "shard",
]
