"""Random problems of decode attention, and their answers by a loop in float64."""

import random
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from commlib.kernels import decode_attention


@dataclass
class Problem:
    """The arguments of a call, on the CPU; `nothing` marks entries of the tables that name no page."""

    q: Tensor
    k_cache: Tensor
    v_cache: Tensor
    tables: Tensor
    lengths: Tensor
    options: dict[str, Any]

    def call(self, device: str = "cpu", **options: Any) -> Tensor:
        """Return what decode_attention says on a device."""
        tensors = (self.q, self.k_cache, self.v_cache, self.tables, self.lengths)
        given = {**self.options, **options}
        there = {name: x.to(device) if isinstance(x, Tensor) else x for name, x in given.items()}
        return decode_attention(*(x.to(device) for x in tensors), **there)

    def keys(self, query: int) -> list[tuple[int, int]]:
        """Return (page, place) of every key that a query sees."""
        pages, size = self.pages()
        index, starts = self.options.get("request_index"), self.options.get("starts")
        row = query if index is None else int(index[query])
        if not 0 <= row < len(self.tables if starts is None else starts):
            return []
        entries = self.tables[row] if starts is None else self.tables[int(starts[row]) :]
        tokens = range(min(int(self.lengths[query]), len(entries) * size))
        return [(int(entries[t // size]), t % size) for t in tokens if 0 <= int(entries[t // size]) < pages]

    def pages(self) -> tuple[int, int]:
        """Return how many pages there are, and their size."""
        shape = self.k_cache.shape
        if len(shape) < 4:
            return shape[0], 1
        return shape[0], shape[2 if self.options.get("layout") == "HND" else 1]

    def expected(self) -> Tensor:
        """Return the answer in float64, one query after the other."""
        _, heads, dim = self.q.shape
        hnd = self.options.get("layout") == "HND"
        k, v = (x.transpose(1, 2) if hnd else x for x in (self.k_cache, self.v_cache))
        k, v = (x.reshape(*self.pages(), -1, dim) for x in (k, v))
        sharing, factor = heads // k.shape[2], self.options.get("scale", dim**-0.5)
        scales = [torch.as_tensor(self.options.get(f"{name}_scale", 1.0)).view(-1, 1) for name in "kv"]
        out = torch.zeros(self.q.shape, dtype=torch.float64)
        for query in range(len(self.q)):
            places = self.keys(query)
            if places:
                at = tuple(torch.tensor(places).t())
                keys, values = (
                    (cache[at].double() * scale).repeat_interleave(sharing, 1)
                    for cache, scale in zip((k, v), scales, strict=True)
                )
                scores = torch.einsum("hd,khd->hk", self.q[query].double(), keys) * factor
                out[query] = torch.einsum("hk,khd->hd", scores.softmax(1), values)
        return out

    def error(self, found: Tensor) -> float:
        """Return the largest error as a share of the largest value; NaN stays NaN."""
        expected = self.expected()
        return float((found.cpu().double() - expected).abs().max() / expected.abs().max().clamp(min=1e-3))


TYPES = (torch.bfloat16, torch.float16, torch.float32)
LAYOUTS = ("NHD", "HND", "flat", "rows")


def random_problem(seed: int, most: int = 300, **fixed: Any) -> Problem:
    """Return a problem with holes in its tables, empty and one-token queries, and NaN wherever nobody may look."""
    chance = random.Random(seed)
    draw = torch.Generator().manual_seed(seed)

    def pick(name: str, *choices: Any) -> Any:
        picked = chance.choice(choices)
        return fixed.get(name, picked)

    dtype, page = pick("dtype", *TYPES), pick("page", 1, 3, 16, 64)
    layout = pick("layout", *LAYOUTS)
    page = 1 if layout in ("flat", "rows") else page
    kv_heads, group = pick("kv_heads", 1, 2, 3), pick("group", 1, 2, 5, 8, 16)
    dim = pick("dim", 8, 64, 80, 128, 256)
    eight_bits = pick("fp8", False, True)
    queries = pick("queries", 1, 4, 7)
    integers = pick("integers", torch.int32, torch.int64)
    lengths = torch.tensor([chance.choice([0, 1, 1, chance.randint(2, most), most]) for _ in range(queries)])
    width = -(-most // page)
    pages = queries * width + 5
    tables = torch.randperm(pages, generator=draw)[: queries * width].view(queries, width)
    if pick("holes", False, True):
        tables[torch.rand(tables.shape, generator=draw) < 0.2] = -1
        tables[0, 0] = chance.choice([pages, 2**31 - 1, -5])
    q = torch.randn(queries, kv_heads * group, dim, generator=draw).to(dtype)
    options: dict[str, Any] = {}
    if pick("indexed", False, True):
        options["request_index"] = torch.randint(-1, queries + 1, (queries,), generator=draw).to(integers)
    if pick("started", False, True):
        options["starts"] = torch.arange(queries).to(integers) * width
        tables = tables.reshape(-1)
    if layout == "HND":
        options["layout"] = layout
    shape = {
        "NHD": (pages, page, kv_heads, dim),
        "HND": (pages, kv_heads, page, dim),
        "flat": (pages, kv_heads, dim),
        "rows": (pages, kv_heads * dim),
    }[layout]
    k, v = (torch.randn(shape, generator=draw).to(dtype) for _ in "kv")
    if eight_bits:
        k, v = (x.to(torch.float8_e4m3fn) for x in (k, v))
        options["k_scale"] = 0.5
        options["v_scale"] = torch.rand(kv_heads, generator=draw) + 0.5 if pick("heads", False, True) else 2.0
    problem = Problem(q, k, v, tables.to(integers), lengths.to(integers), options)
    _poison(problem, layout == "HND")
    return problem


def _poison(problem: Problem, hnd: bool) -> None:
    """Put NaN into every slot that no query sees."""
    seen = {place for query in range(len(problem.q)) for place in problem.keys(query)}
    pages, size = problem.pages()
    mask = torch.ones(pages, size, dtype=torch.bool)
    if seen:
        mask[tuple(torch.tensor(sorted(seen)).t())] = False
    for cache in (problem.k_cache, problem.v_cache):
        as_bytes = cache.view(torch.uint8)
        slots = as_bytes.transpose(1, 2) if hnd else as_bytes
        slots[mask if cache.dim() == 4 else mask[:, 0]] = 0xFF
