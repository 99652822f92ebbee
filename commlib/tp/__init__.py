"""Tensor-parallel layers on a Communicator; examples/llama is a model made of them."""

from commlib.tp.layers import ColumnParallelLinear, RowParallelLinear, VocabParallelEmbedding, communicator
from commlib.tp.norm import FusedResidualNorm
from commlib.tp.pipeline import Pipeline
from commlib.tp.shard import Shard, gather_rows, heads, scatter_rows, shard
from commlib.tp.weights import RandomWeights, SafeTensors, Source

__all__ = [
    "ColumnParallelLinear",
    "FusedResidualNorm",
    "Pipeline",
    "RandomWeights",
    "RowParallelLinear",
    "SafeTensors",
    "Shard",
    "Source",
    "VocabParallelEmbedding",
    "communicator",
    "gather_rows",
    "heads",
    "scatter_rows",
    "shard",
]
