"""attention: decoding over a paged cache, or a causal prefill; ceilings are a read of the bytes, and a product."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from commlib.kernels.attention import FP8, Call, decode_attention
from commlib.kernels.attention_gpu import Tuning, launch, tuning_of
from commlib.tools.baselines.kernels import attention_peers, triton
from commlib.tools.baselines.kernels.case import FLOOR, OURS, Candidate, Case, Inputs, missing
from commlib.tools.baselines.kernels.compiled import Compiler
from commlib.tools.baselines.kernels.sets import SEED
from commlib.tools.timing import Run

PHASES = ("decode", "prefill")
COMPARE, TUNE = "compare", "tune"  # who is measured beside ours: peers, or ours compiled in other ways
READ, READ_TRITON, MATMUL = "read", "read, Triton", "matmul"
FAR = 1e-2  # of the largest value; what is farther off is wrong
SPLIT_TOKENS = 256
K_SCALE, V_SCALE = 0.5, 0.25
MATMUL_WIDTH = {"cuda": 4096, "cpu": 512}
BLOCKS, WARPS, STAGES, SPANS = (32, 64, 128), (2, 4, 8), (2, 3, 4), (1, 2, 3, 4, 6, 8, 12, 16, 32, 64)


@dataclass(frozen=True)
class AttentionCase(Case):
    """n requests of `length` tokens, and heads of `dim` features."""

    length: int = 4096
    heads: int = 64
    kv_heads: int = 8
    page_size: int = 16
    ragged: bool = False  # lengths from 1 to twice the mean
    beside: str = ""

    def __str__(self) -> str:
        """Name it for people."""
        return f"attention {self.variant}, {self.n} x {self.length}, {self.heads}/{self.kv_heads} heads of {self.dim}"

    @property
    def phase(self) -> str:
        """Whether one token of each request is computed, or all."""
        return self.variant.split()[0]

    @property
    def kept_as(self) -> torch.dtype:
        """The type of the cache."""
        return FP8 if self.variant.endswith("fp8") else self.dtype

    @property
    def launched(self) -> str:
        """Ours that decodes; prompts are torch's."""
        return "attend_spans" if self.phase == "decode" else ""

    def words(self) -> list[str]:
        """Return the words after `commlib profile` that ask for this case alone."""
        sizes = {"batch": self.n, "length": self.length, "heads": self.heads, "kv-heads": self.kv_heads}
        sizes |= {"dim": self.dim, "page-size": self.page_size}
        words = [self.kernel, f"--phase={self.phase}", *(f"--{name}={size}" for name, size in sizes.items())]
        flags = {"--fp8": self.kept_as == FP8, "--ragged": self.ragged}
        return [*words, f"--dtype={self.type}", *(flag for flag, on in flags.items() if on)]

    def lengths(self) -> list[int]:
        """Return the length of each request; the mean of ragged ones is about the case's."""
        if not self.ragged:
            return [self.length] * self.n
        draw = torch.Generator().manual_seed(SEED)
        return torch.randint(1, 2 * self.length, (self.n,), generator=draw).tolist()

    def flops(self) -> int:
        """Count the operations of both products; of a causal prefill, half of the square."""
        pairs = sum(n * n // 2 if self.phase == "prefill" else n for n in self.lengths())
        return 4 * self.heads * self.dim * pairs


class Attended(Inputs):
    """One set of inputs whose result is compared with float32; outputs are [tokens, heads, dim]."""

    case: AttentionCase
    out: Tensor

    @cached_property
    def truth(self) -> Tensor:
        """Compute it in float32, once."""
        return self.computed()

    @abstractmethod
    def computed(self) -> Tensor:
        """Compute the result in float32."""

    def expected(self) -> list[Tensor]:
        """Return what the output is near."""
        return [self.truth]

    def wrong(self, returned: Any) -> int:
        """Count the elements that are too far off; NaN is."""
        return int((~(self._distance(returned) <= FAR)).count_nonzero())

    def error(self, returned: Any) -> float:
        """Return the largest distance as a share of the largest value."""
        found = float(self._distance(returned).max())
        return math.inf if math.isnan(found) else found

    def _distance(self, returned: Any) -> Tensor:
        found = returned if isinstance(returned, Tensor) else self.out
        truth: Tensor = self.truth
        distance: Tensor = (found.float() - truth).abs() / truth.abs().max()
        return distance


class Decoding(Attended):
    """A query for each request, tables of random pages, and a cache that has just these."""

    k_scale, v_scale = K_SCALE, V_SCALE

    def __init__(self, case: AttentionCase, device: torch.device, draw: torch.Generator) -> None:
        self.case = case
        lengths, size = case.lengths(), case.page_size
        counts = [-(-length // size) for length in lengths]
        shape = (2, sum(counts), size, case.kv_heads, case.dim)
        self.kv = torch.empty(shape, dtype=case.kept_as, device=device)
        for cache in self.kv:
            cache.copy_(torch.randn(shape[1:], dtype=case.dtype, device=device, generator=draw))
        self.k_cache, self.v_cache = self.kv
        pages = torch.randperm(sum(counts), generator=draw, device=device).int()
        self.tables = pages.new_zeros(case.n, max(counts))
        for row, own in zip(self.tables, pages.split(counts), strict=True):
            row[: len(own)] = own
        self.lengths = torch.tensor(lengths, dtype=torch.int32, device=device)
        self.q = torch.randn(case.n, case.heads, case.dim, dtype=case.dtype, device=device, generator=draw)
        self.out = torch.empty_like(self.q)
        self.outputs = [self.out]
        self.source = self.kv.view(-1)[: 2 * sum(lengths) * case.kv_heads * case.dim].view(torch.uint8)
        self.target = self.out

    @property
    def scales(self) -> dict[str, float]:
        """Return the scales of an 8-bit cache."""
        return {"k_scale": K_SCALE, "v_scale": V_SCALE} if self.case.kept_as == FP8 else {}

    @cached_property
    def dense(self) -> tuple[Tensor, Tensor]:
        """Return K and V of each request side by side, [requests, heads, tokens, dim]; of equal lengths."""
        length, pages = self.case.length, self.tables.long()
        k, v = (cache[pages].flatten(1, 2)[:, :length].transpose(1, 2).contiguous() for cache in self.kv)
        return k, v

    @property
    def grouped(self) -> Tensor:
        """Return the queries of each KV head as rows, [requests, KV heads, rows, dim]: nobody has K and V repeated."""
        rows: Tensor = self.q.unflatten(1, (self.case.kv_heads, -1))
        return rows

    def computed(self) -> Tensor:
        """Compute one request after the other."""
        case, out = self.case, torch.empty(self.q.shape, device=self.q.device)
        factors = (K_SCALE, V_SCALE) if self.scales else (1, 1)
        for at, length in enumerate(case.lengths()):
            pages = self.tables[at, : -(-length // case.page_size)].long()
            k, v = (
                cache[pages].flatten(0, 1)[:length].float().mul_(factor)
                for cache, factor in zip(self.kv, factors, strict=True)
            )
            q = self.q[at].float().unflatten(0, (case.kv_heads, -1))
            scores = q @ k.permute(1, 2, 0) * case.dim**-0.5
            out[at] = (scores.softmax(-1) @ v.transpose(0, 1)).flatten(0, 1)
        return out


class Prefilling(Attended):
    """Q, K and V of whole prompts: [requests, heads, tokens, dim]."""

    def __init__(self, case: AttentionCase, device: torch.device, draw: torch.Generator) -> None:
        self.case = case
        kinds: Any = {"dtype": case.dtype, "device": device, "generator": draw}
        self.q = torch.randn(case.n, case.heads, case.length, case.dim, **kinds)
        self.k, self.v = torch.randn(2, case.n, case.kv_heads, case.length, case.dim, **kinds)
        self.out = torch.empty_like(self.q)
        self.outputs, self.source, self.target = [self.out], self.q, self.out

    def computed(self) -> Tensor:
        """Compute one head after the other."""
        case, out = self.case, torch.empty(self.q.shape, device=self.q.device)
        later = torch.ones(case.length, case.length, dtype=torch.bool, device=self.q.device).triu(1)
        for request, head in product(range(case.n), range(case.heads)):
            of = (request, head // (case.heads // case.kv_heads))
            scores = self.q[request, head].float() @ self.k[of].float().t() * case.dim**-0.5
            out[request, head] = scores.masked_fill_(later, -math.inf).softmax(-1) @ self.v[of].float()
        return out


def num_bytes(case: AttentionCase) -> int:
    """Count K and V once, queries, and results."""
    tokens = sum(case.lengths())
    queries = tokens if case.phase == "prefill" else case.n
    kept = 2 * tokens * case.kv_heads * case.dim * case.kept_as.itemsize
    return kept + 2 * queries * case.heads * case.dim * case.dtype.itemsize


def inputs(case: AttentionCase, sets: int, device: torch.device) -> Sequence[Attended]:
    """Return sets with nothing in common."""
    draw = torch.Generator(device).manual_seed(SEED)
    kind = Prefilling if case.phase == "prefill" else Decoding
    return [kind(case, device, draw) for _ in range(sets)]


def candidates(case: AttentionCase, compiled: Compiler) -> list[Candidate]:
    """Return ours and the ceilings, and who else was asked for."""
    if case.phase == "prefill":
        return [Candidate(MATMUL, _matmul, FLOOR), *attention_peers.prefill(case, compiled)]
    ours = [Candidate("commlib", _ours, OURS), Candidate(READ, _sum, FLOOR), triton.read(READ_TRITON)]
    if case.beside == TUNE:
        return [*ours, *_tunings(case)]
    ours.insert(1, Candidate(f"commlib split {SPLIT_TOKENS}", partial(_ours, split_tokens=SPLIT_TOKENS), OURS))
    return [*ours, *(attention_peers.decode(case, compiled) if case.beside == COMPARE else [])]


def _ours(inputs: Decoding, split_tokens: int | None = None) -> Run:
    tensors = (inputs.q, inputs.k_cache, inputs.v_cache, inputs.tables, inputs.lengths)
    options: dict[str, Any] = {"split_tokens": split_tokens, "out": inputs.out, **inputs.scales}
    return partial(decode_attention, *tensors, **options)


def _sum(inputs: Decoding) -> Run:
    """Return torch's sum of as many bytes."""
    return partial(torch.sum, inputs.source[: len(inputs.source) // 4 * 4].view(torch.float32))


def _matmul(inputs: Prefilling) -> Run:
    """Return a product with as many operations."""
    width = MATMUL_WIDTH[inputs.q.device.type]
    rows = max(1, inputs.case.flops() // (2 * width * width))
    kinds: Any = {"dtype": inputs.q.dtype, "device": inputs.q.device}
    a, b = torch.randn(rows, width, **kinds), torch.randn(width, width, **kinds)
    return partial(torch.mm, a, b, out=torch.empty(rows, width, **kinds))


def _tunings(case: AttentionCase) -> list[Candidate]:
    if not torch.cuda.is_available():
        return [missing("tunings", "they are of the GPU's kernel")]
    shapes = [Tuning(*each) for each in product(BLOCKS, WARPS, STAGES)]
    named = {f"block {each.block} w{each.warps} s{each.stages}": each._asdict() for each in shapes}
    named |= {f"spans {spans}": {"spans": spans} for spans in SPANS}
    named |= {"early": {"early": True}, "not early": {"early": False}}
    return [Candidate(label, partial(_changed, changes=changes)) for label, changes in named.items()]


def _changed(inputs: Decoding, changes: dict[str, Any]) -> Run:
    """Return ours with other numbers than it chooses."""
    call = _call(inputs)
    return partial(launch, call, tuning_of(call)._replace(**changes))


def _call(inputs: Decoding) -> Call:
    scales = (K_SCALE, V_SCALE) if inputs.scales else (None, None)
    tensors = (inputs.out, inputs.q, inputs.k_cache, inputs.v_cache, inputs.tables, inputs.lengths)
    return Call(*tensors, None, None, inputs.case.dim**-0.5, scales)
