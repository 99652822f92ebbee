"""A Llama-shaped decoder, divided over the ranks of a communicator; inference only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from commlib.communicator import Communicator
from commlib.errors import CommError
from commlib.kernels import store
from commlib.tp.layers import ColumnParallelLinear, RowParallelLinear, VocabParallelEmbedding
from commlib.tp.norm import FusedResidualNorm
from commlib.tp.pipeline import Pipeline, Steps
from commlib.tp.shard import heads, shard
from commlib.tp.weights import SafeTensors, Source
from examples.llama.batch import Batch, attend
from examples.llama.config import LlamaConfig, frequencies


class KVCache:
    """K and V of this rank's heads: for each layer [pages, page_size, heads, head_dim]."""

    def __init__(self, model: Llama, pages: int, page_size: int) -> None:
        config, comm = model.config, model.comm
        _, kv_heads = heads(config.num_attention_heads, config.num_key_value_heads, comm.rank, comm.size)
        shape = (2, config.num_hidden_layers, pages, page_size, kv_heads.length, config.head_dim)
        self.page_size = page_size
        self.k, self.v = torch.zeros(shape, dtype=model.dtype, device=comm.device)


class Attention(nn.Module):
    """Q, K and V in one product, rotary positions, the cache, and this rank's part of the output."""

    def __init__(self, comm: Communicator, config: LlamaConfig, dtype: torch.dtype) -> None:
        super().__init__()
        parts = heads(config.num_attention_heads, config.num_key_value_heads, comm.rank, comm.size)
        queries, keys = (part.times(config.head_dim) for part in parts)
        options: Any = {"bias": config.attention_bias, "dtype": dtype}
        self.head_dim = config.head_dim
        self.qkv = ColumnParallelLinear(comm, config.hidden_size, [queries, keys, keys], **options)
        self.out = RowParallelLinear(comm, queries, config.hidden_size, **options)

    def mixed(self, qkv: Tensor, batch: Batch, rotary: tuple[Tensor, Tensor], cache: tuple[Tensor, Tensor]) -> Tensor:
        """Return what lies between the two products: the new K and V are stored, and each token attends."""
        q, k, v = (part.unflatten(-1, (-1, self.head_dim)) for part in self.qkv.split(qkv))
        q, k = turned(q, *rotary), turned(k, *rotary)
        store(*cache, batch.slots, k, v, unique=True)
        return attend(q, *cache, batch).flatten(1)

    def load(self, source: Source, name: str) -> None:
        """Read the four projections."""
        self.qkv.load(source, *(f"{name}.{part}_proj" for part in "qkv"))
        self.out.load(source, f"{name}.o_proj")


class MLP(nn.Module):
    """Gate and up in one product, and this rank's part of the output."""

    def __init__(self, comm: Communicator, config: LlamaConfig, dtype: torch.dtype) -> None:
        super().__init__()
        options: Any = {"bias": config.mlp_bias, "dtype": dtype}
        part = shard(config.intermediate_size, comm.rank, comm.size)
        self.gate_up = ColumnParallelLinear(comm, config.hidden_size, [part, part], **options)
        self.down = RowParallelLinear(comm, part, config.hidden_size, **options)

    def forward(self, x: Tensor) -> Tensor:
        """Return the partial result, in place of x."""
        gate, up = self.gate_up.split(self.gate_up(x))
        return self.down.partial(F.silu(gate) * up, out=x)

    def load(self, source: Source, name: str) -> None:
        """Read the three projections."""
        self.gate_up.load(source, f"{name}.gate_proj", f"{name}.up_proj")
        self.down.load(source, f"{name}.down_proj")


class Layer(nn.Module):
    """Attention and MLP; each ends with the norm that the next block begins with."""

    def __init__(self, comm: Communicator, config: LlamaConfig, norm: Any, dtype: torch.dtype) -> None:
        super().__init__()
        self.attention, self.middle = Attention(comm, config, dtype), norm()
        self.mlp, self.end = MLP(comm, config, dtype), norm()

    def forward(
        self, x: Tensor, residual: Tensor, batch: Batch, rotary: tuple[Tensor, Tensor], cache: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Take and return normalised rows and the residual."""
        mixed = self.attention.mixed(self.attention.qkv(x), batch, rotary, cache)
        return self.behind(mixed, x, residual)

    def behind(self, mixed: Tensor, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the same from what attention mixed on; the normalised rows replace x."""
        x, residual = self.middle(self.attention.out.partial(mixed, out=x), residual)
        normed: tuple[Tensor, Tensor] = self.end(self.mlp(x), residual)
        return normed

    def steps(self, pipeline: Pipeline, mixed: Tensor, x: Tensor, residual: Tensor | None) -> Steps[Tensor]:
        """Do as behind(), for one chunk of a pipeline, which x may fill up with rows; return the new residual."""
        self.attention.out.partial(mixed, out=x[: len(mixed)])
        middle = yield from self.middle.steps(pipeline, x, residual)
        end: Tensor = yield from self.end.steps(pipeline, self.mlp(x), middle)
        return end


@dataclass
class Chunk:
    """Some tokens of a batch on their way from one attention to the next."""

    rows: slice
    x: Tensor
    qkv: Tensor
    residual: Tensor | None = None  # of the rows that this rank keeps

    def through(self, steps: Steps[Tensor], follower: Layer | None) -> Steps[None]:
        """Take these steps, which return the residual, and compute what the attention behind them takes."""
        self.residual = yield from steps
        if follower is not None:
            follower.attention.qkv(self.x, out=self.qkv)


class Llama(nn.Module):
    """A decoder whose forward() returns this rank's logits of each request's last token.

    One buffer of `max_tokens` rows, in symmetric memory where it fits, is input and output of every block: partial
    results are written where they are added up, and normalised rows where they are read. Batches of which `pipeline`
    makes several chunks run sequence parallel, where the communication of a chunk overlaps the products of others.
    """

    def __init__(
        self,
        comm: Communicator,
        config: LlamaConfig,
        *,
        dtype: torch.dtype = torch.float32,
        max_tokens: int = 512,
        sequence_parallel: bool = False,
        pipeline: Pipeline | None = None,
    ) -> None:
        super().__init__()
        self.comm, self.config, self.dtype = comm, config, dtype
        self.pipeline = pipeline or Pipeline(comm)

        def norm() -> FusedResidualNorm:
            options: Any = {"sequence_parallel": sequence_parallel, "dtype": dtype}
            return FusedResidualNorm(comm, config.hidden_size, config.rms_norm_eps, **options)

        self.embed = VocabParallelEmbedding(comm, config.vocab_size, config.hidden_size, dtype=dtype)
        self.begin = norm()
        self.layers = nn.ModuleList(Layer(comm, config, norm, dtype) for _ in range(config.num_hidden_layers))
        self.head = ColumnParallelLinear(comm, config.hidden_size, config.vocab_size, dtype=dtype)
        if config.tie_word_embeddings:
            self.head.weight = self.embed.weight
        self.turns = frequencies(config).to(comm.device)
        self.max_tokens, place = max_tokens, (_filled(max_tokens, comm.size), config.hidden_size)
        engines = self.pipeline.engines  # which move nothing else
        self.buffer = self.pipeline.comm.empty(*place, dtype=dtype) if engines else _symmetric(comm, *place, dtype)

    def forward(self, batch: Batch, cache: KVCache) -> Tensor:
        """Store the new tokens in the cache; return this rank's logits, [requests, part of the vocabulary]."""
        if len(batch.ids) > self.max_tokens:
            raise ValueError(f"the batch has {len(batch.ids)} new tokens, but max_tokens is {self.max_tokens}")
        run = self._at_once if len(self.pipeline.cuts(len(batch.ids))) == 1 else self._in_chunks
        x = run(batch, cache)
        logits: Tensor = self.head(x[batch.last])
        return logits

    def between(self, tokens: int) -> Callable[[], object]:
        """Return what a layer does between two attentions for so many tokens, made up: what Pipeline.tune measures."""
        layer: Any = self.layers[0]
        mixed = torch.randn(tokens, layer.attention.out.part.length, device=self.comm.device).to(self.dtype)

        def run() -> None:
            if len(self.pipeline.cuts(tokens)) == 1:
                layer.attention.qkv(layer.behind(mixed, self.buffer[:tokens], None)[0])
            else:
                self._layer_in_chunks(layer, layer, mixed, self._chunks(tokens)[0])

        return run

    def _at_once(self, batch: Batch, cache: KVCache) -> Tensor:
        """Return the normalised rows behind the last layer."""
        rotary = self.rotary(batch.positions)
        x: Tensor
        x, residual = self.begin(self.embed.partial(batch.ids, self.buffer[: len(batch.ids)]))
        for layer, of_layer in zip(self.layers, zip(cache.k, cache.v, strict=True), strict=True):
            x, residual = layer(x, residual, batch, rotary, of_layer)
        return x

    def _in_chunks(self, batch: Batch, cache: KVCache) -> Tensor:
        """Return the same; from one attention to the next, all is done for each chunk of tokens apart."""
        rotary, layers = self.rotary(batch.positions), list[Any](self.layers)
        chunks, qkv = self._chunks(len(batch.ids))
        self.pipeline.run(chunk.through(self._begin(batch.ids[chunk.rows], chunk.x), layers[0]) for chunk in chunks)
        for number, layer in enumerate(layers):
            mixed = layer.attention.mixed(qkv, batch, rotary, (cache.k[number], cache.v[number]))
            self._layer_in_chunks(layer, layers[number + 1] if number + 1 < len(layers) else None, mixed, chunks)
        return self.buffer[: len(batch.ids)]

    def _chunks(self, tokens: int) -> tuple[list[Chunk], Tensor]:
        """Return the chunks of a batch, and its Q, K and V; rows of zeros make ranks' parts equal."""
        first: Any = self.layers[0]
        filled = _filled(tokens, self.comm.size)
        self.buffer[tokens:filled] = 0
        qkv = self.buffer.new_empty(filled, len(first.attention.qkv.weight))
        return [Chunk(rows, self.buffer[rows], qkv[rows]) for rows in self.pipeline.cuts(filled)], qkv[:tokens]

    def _begin(self, ids: Tensor, x: Tensor) -> Steps[Tensor]:
        self.embed.partial(ids, x[: len(ids)])
        return (yield from self.begin.steps(self.pipeline, x, None))

    def _layer_in_chunks(self, layer: Layer, follower: Layer | None, mixed: Tensor, chunks: Sequence[Chunk]) -> None:
        def program(chunk: Chunk) -> Steps[None]:
            steps = layer.steps(self.pipeline, mixed[chunk.rows], chunk.x, chunk.residual)
            return chunk.through(steps, follower)

        self.pipeline.run(map(program, chunks))

    def load(self, source: Source) -> None:
        """Read every weight by Hugging Face's names for Llama."""
        self.embed.load(source, "model.embed_tokens")
        # A norm stands here at the end of what is before it, and there at the beginning of what comes after it.
        norms, names = [self.begin], []
        layers: Iterable[Any] = self.layers
        for number, layer in enumerate(layers):
            name = f"model.layers.{number}"
            layer.attention.load(source, f"{name}.self_attn")
            layer.mlp.load(source, f"{name}.mlp")
            norms += [layer.middle, layer.end]
            names += [f"{name}.input_layernorm", f"{name}.post_attention_layernorm"]
        for norm, name in zip(norms, [*names, "model.norm"], strict=True):
            norm.load(source, name)
        if not self.config.tie_word_embeddings:
            self.head.load(source, "lm_head")

    @classmethod
    def from_folder(cls, comm: Communicator, folder: str | Path, **options: Any) -> Llama:
        """Return the model of a folder with config.json and safetensors; each rank reads only its part."""
        model = cls(comm, LlamaConfig.read(folder), **options)
        model.load(SafeTensors(folder))
        return model

    def rotary(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return by which cosines and sines the heads of tokens at these positions are turned."""
        angles = (positions.float()[:, None] * self.turns)[:, None]  # a token, its heads, a pair of features
        return angles.cos().to(self.dtype), angles.sin().to(self.dtype)


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return heads whose pairs of features (the first half with the second) are turned by their position."""
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def _filled(tokens: int, ranks: int) -> int:
    """Return a number that the ranks divide."""
    return -(-tokens // ranks) * ranks


def _symmetric(comm: Communicator, rows: int, width: int, dtype: torch.dtype) -> Tensor:
    """Return memory in the arena, which all ranks fill alike, or plain memory if it is full."""
    with suppress(CommError):
        return comm.empty(rows, width, dtype=dtype)
    return torch.empty(rows, width, dtype=dtype, device=comm.device)
