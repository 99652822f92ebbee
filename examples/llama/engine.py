"""Prompts in, tokens out: the scheduler's steps, run by the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from commlib.counts import counted
from examples.llama.batch import Batch, decode_batch, extend_batch
from examples.llama.logits import Sampling, greedy, sample
from examples.llama.model import KVCache, Llama
from examples.llama.scheduler import GREEDY, Draw, Request, Scheduler

Step: TypeAlias = "Sequence[tuple[Request, int]]"
Outputs: TypeAlias = tuple[Tensor, Tensor]
"""This rank's logits, and the tokens with the largest ones."""


@dataclass(frozen=True)
class Generated:
    """What one prompt got."""

    tokens: list[int]
    reused: int  # tokens of the prompt that were not computed again


class Engine:
    """Generates for many prompts at once, with a paged cache in which prompts share their prefixes.

    A step in which every request has one new token is a decode step: its shapes are rounded up to powers of two, and on
    a GPU each shape is captured in a CUDA graph when it first comes up. Rank 0's prompts count on all ranks.
    """

    def __init__(
        self,
        model: Llama,
        *,
        pages: int = 256,
        page_size: int = 16,
        max_batch: int = 16,
        reuse: bool = True,
        graphs: bool = True,
    ) -> None:
        self.model, self.cache = model, KVCache(model, pages, page_size)
        limits = {"max_batch": max_batch, "max_tokens": model.max_tokens}
        self.scheduler = Scheduler(pages, page_size, **limits, reuse=reuse)
        on_gpu = model.comm.device.type == "cuda"
        self._pool = torch.cuda.graph_pool_handle() if graphs and on_gpu else None
        self._decoders: dict[tuple[int, int], Decoder] = {}

    def generate(
        self, prompts: Sequence[Sequence[int]], max_new_tokens: int = 16, draw: Draw | Sequence[Draw] = GREEDY
    ) -> list[Generated]:
        """Return what each prompt got; every rank must call this, and rank 0's arguments count."""
        comm = self.model.comm
        inputs = (prompts, max_new_tokens, draw) if comm.rank == 0 else None
        prompts, max_new_tokens, draw = comm.broadcast_object(inputs, 0)
        draws = [draw] * len(prompts) if isinstance(draw, Draw) else draw
        if len(draws) != len(prompts):
            drawn = counted(len(draws), "draw")
            raise ValueError(f"{drawn} for {counted(len(prompts), 'prompt')}; pass one, or one for each")
        requests = [
            self._checked(Request(list(prompt), max_new_tokens, of_one, self.model.config.eos))
            for prompt, of_one in zip(prompts, draws, strict=True)
        ]
        self.scheduler.add(*requests)
        while self.step():
            pass
        return [Generated(request.new_tokens, request.reused) for request in requests]

    @torch.no_grad()
    def step(self) -> bool:
        """Run the scheduler's next step, if there is one."""
        step = self.scheduler.schedule()
        if step:
            one_each = all(count == 1 for _, count in step)
            logits, tokens = self._decode(step) if one_each else self._extend(step)
            if any(request.draw.temperature > 0 for request, _ in step):
                tokens = sample(self.model.comm, logits, self.model.config.vocab_size, self._sampling(step))
            self.scheduler.advance(step, tokens.tolist())
        return bool(step)

    def _checked(self, request: Request) -> Request:
        config, total = self.model.config, len(request.prompt) + request.max_new_tokens
        if total > config.max_position_embeddings:
            tokens = counted(len(request.prompt), "token")
            raise ValueError(
                f"a prompt of {tokens} and {request.max_new_tokens} new ones are {total}, but the model's "
                f"max_position_embeddings is {config.max_position_embeddings}"
            )
        wrong = [token for token in request.prompt if not 0 <= token < config.vocab_size]
        if wrong:
            raise ValueError(f"the prompt has token {wrong[0]}, but tokens are from 0 to {config.vocab_size - 1}")
        return request

    def _extend(self, step: Step) -> Outputs:
        starts = [request.computed for request, _ in step]
        tokens = [request.tokens[start : start + count] for (request, count), start in zip(step, starts, strict=True)]
        width = max(len(request.pages) for request, _ in step)
        tables = [request.pages + [0] * (width - len(request.pages)) for request, _ in step]
        on_device = torch.tensor(tables, dtype=torch.int32).to(self.model.comm.device)
        return self._run(extend_batch(tokens, starts, on_device, self.cache.page_size))

    def _decode(self, step: Step) -> Outputs:
        size = self.cache.page_size
        rows = [
            [request.tokens[request.computed], request.computed + 1, *request.pages[: request.computed // size + 1]]
            for request, _ in step
        ]
        longest = max(len(row) for row in rows) - 2
        shape = (min(_power(len(rows)), self.scheduler.max_batch), min(_power(longest), self.scheduler.pages))
        if shape not in self._decoders:
            self._decoders[shape] = Decoder(self._run_decode, shape, self.model.comm.device, self._pool)
        logits, tokens = self._decoders[shape](rows)
        return logits[: len(rows)], tokens[: len(rows)]

    def _run_decode(self, inputs: Tensor) -> Outputs:
        return self._run(decode_batch(inputs, self.cache.page_size))

    def _run(self, batch: Batch) -> Outputs:
        logits = self.model(batch, self.cache)
        return logits, greedy(self.model.comm, logits, self.model.config.vocab_size)

    def _sampling(self, step: Step) -> Sampling:
        draws = [request.draw for request, _ in step]
        device, vocab_size = self.model.comm.device, self.model.config.vocab_size
        temperature = torch.tensor([draw.temperature for draw in draws], dtype=torch.float32).to(device)
        whole = [
            (min(draw.top_k, vocab_size), draw.seed % 2**32, request.computed + count)
            for draw, (request, count) in zip(draws, step, strict=True)
        ]
        top_k, seed, position = torch.tensor(whole).to(device).unbind(1)
        return Sampling(temperature, top_k, seed, position, max(draw.top_k for draw in draws))

    def close(self) -> None:
        """Drop the graphs: before the communicator is closed."""
        self._decoders.clear()


class Decoder:
    """A decode step of one shape: captured in a CUDA graph if there is a pool of memory for it."""

    def __init__(
        self, run: Callable[[Tensor], Outputs], shape: tuple[int, int], device: torch.device, pool: Any
    ) -> None:
        self._run, (batch, width) = run, shape
        self._inputs = torch.zeros(batch, 2 + width, dtype=torch.int32, device=device)  # length 0: padding
        self._graph: torch.cuda.CUDAGraph | None = None
        if pool is not None:
            run(self._inputs)  # compiles and connects what a capture needs
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph, pool=pool):
                self._outputs = run(self._inputs)

    def __call__(self, rows: Sequence[Sequence[int]]) -> Outputs:
        """Return logits and tokens for rows of a token, a length and pages; the next call overwrites them."""
        batch, width = self._inputs.shape
        padded = [[*row, *[0] * (width - len(row))] for row in [*rows, *[[]] * (batch - len(rows))]]
        self._inputs.copy_(torch.tensor(padded, dtype=torch.int32))
        if self._graph is None:
            return self._run(self._inputs)
        self._graph.replay()
        return self._outputs


def _power(count: int) -> int:
    """Return the smallest power of two that is not below."""
    return 1 << (count - 1).bit_length()
