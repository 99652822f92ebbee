"""Conformance: run one algorithm over types, reductions, ragged sizes and placements, and compare every value.

The same code serves `commlib test` (any installation) and the project's test suite; it iterates the tables, so a new
algorithm or collective is covered without an edit.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import torch

from commlib.collectives import COLLECTIVES
from commlib.collectives.reference import exact, ordered, reducible
from commlib.collectives.spec import Algorithm, Call, Collective
from commlib.counts import counted
from commlib.plan import Plan
from commlib.redops import DTYPES, REDOPS
from commlib.tools.timing import bits, poison

if TYPE_CHECKING:
    from commlib.communicator import Communicator

TYPES: tuple[torch.dtype, ...] = tuple(getattr(torch, name) for name in DTYPES)
BLOCK_COUNT = 2048  # up to here a count is of one block


@dataclass(frozen=True)
class Scope:
    """Which calls to make: `counts` × `dtypes` × `redops` × in and out of place."""

    counts: tuple[int, ...]
    dtypes: tuple[torch.dtype, ...] = (torch.float32,)
    redops: tuple[str, ...] = ("sum",)


# Empty, one, odd, a little more than a vector and than an inline message, a page and one.
EVERY_TYPE = Scope((0, 1, 7, 33, 1025), (*TYPES, torch.float8_e4m3fnuz), REDOPS)
# One past a chunk, several chunks with a ragged end, more than all staging (4 x 256 KiB) holds.
EVERY_SIZE = Scope((2048, 65_537, 300_007, 1_100_003), (torch.float32, torch.bfloat16))
QUICK = Scope((1, 17, 4099), (torch.float32, torch.bfloat16), ("sum", "max"))


@dataclass(frozen=True)
class Verdict:
    """What one rank found: the first wrong case, how many cases ran, and a checksum of every output."""

    wrong: str
    cases: int
    checksum: int


def check_algorithm(comm: Communicator, name: str, algorithm: str, scope: Scope) -> Verdict:
    """Run every case of one algorithm on this rank."""
    collective = COLLECTIVES[name]
    chosen = collective.algorithm(algorithm)
    before = comm.plan
    comm.use(Plan.only({name: algorithm}, base=before))
    wrong, cases, checksum = "", 0, 0
    # Every rank runs every case, right or wrong: a rank that stopped early would leave the others waiting.
    for call, in_place in _cases(comm, collective, chosen, scope):
        text, out = _run(comm, collective, chosen, call, in_place)
        wrong, cases, checksum = wrong or text, cases + 1, zlib.crc32(_raw(out), checksum)
    comm.use(before)
    return Verdict(wrong, cases, checksum)


def _cases(
    comm: Communicator, collective: Collective, algorithm: Algorithm, scope: Scope
) -> Iterator[tuple[Call, bool]]:
    redops = scope.redops if collective.reduces else ("sum",)
    # A collective without data has nothing to vary.
    counts = scope.counts if collective.shapes(Call(1, 2, 8, torch.uint8)) != (0, 0) else (0,)
    for count, dtype, redop in itertools.product(counts, scope.dtypes, redops):
        if collective.reduces and (dtype == torch.float8_e4m3fnuz or not reducible(dtype, redop)):
            continue
        if algorithm.refuses(dtype, redop, comm.size) is not None:
            continue
        root = count % comm.size if collective.rooted else 0
        call = Call(comm.rank, comm.size, count, dtype, redop, root)
        if count > BLOCK_COUNT and collective.num_bytes(call) > count * dtype.itemsize:
            call = replace(call, count=count // comm.size | 1)  # a count here is of the whole tensor
        call = replace(call, count=collective.whole(call.count))
        if collective.out_of_place:
            yield call, False
        if collective.has_in_place and algorithm.in_place:
            yield call, True


@dataclass(frozen=True)
class Known:
    """What a call takes and gives: every rank's input, this rank's output, and how far that is from float64's.

    `peak` is the largest number that any order of the operations can meet on its way to each output.
    """

    inputs: list[torch.Tensor]
    output: torch.Tensor | None
    exact: torch.Tensor | None
    peak: torch.Tensor | None
    rounding: str


@lru_cache(maxsize=16)  # a collective's sizes: its next algorithm is given the same, and in place follows out of place
def _known(name: str, call: Call) -> Known:
    collective = COLLECTIVES[name]
    calls = [replace(call, rank=rank) for rank in range(call.size)]
    inputs = [_input(c.rank, c.count, c.dtype, collective.shapes(c)[0]) for c in calls]
    output = collective.reference(call, inputs, ordered)
    if (
        output is None
        or collective.close
        or not (collective.reduces and (call.dtype.is_floating_point or call.dtype.is_complex))
    ):
        return Known(inputs, output, None, None, "")
    reference, peak = collective.reference(call, inputs, exact), _peak(collective, call, inputs)
    assert reference is not None
    return Known(inputs, output, reference, peak, _deviates(output.view(-1), reference, peak, call))


def _peak(collective: Collective, call: Call, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
    redop = {"avg": "sum", "min": "max"}.get(call.redop, call.redop)
    magnitudes = [x.abs().double() if x.is_complex() else x.double().abs() for x in inputs]
    peak = collective.reference(replace(call, redop=redop), [x.clamp(min=1) for x in magnitudes], exact)
    assert peak is not None
    return peak.view(-1)


def _run(
    comm: Communicator, collective: Collective, algorithm: Algorithm, call: Call, in_place: bool
) -> tuple[str, torch.Tensor]:
    known = _known(collective.name, call)
    x, out = _buffers(comm, collective, algorithm, call, in_place)
    poison(out)  # an output that nobody writes must not look right
    x.copy_(known.inputs[call.rank])
    collective.invoke(comm, x, out, call)
    if known.output is None:
        # A rank that receives nothing keeps its input (in place or not).
        out, text = x, _differs(x, known.inputs[call.rank])
    elif collective.close:
        text = _is_far(out, known.output, collective.close(call.dtype), 0 if algorithm.ordered else 8)
    elif algorithm.ordered or not collective.reduces:
        text = _differs(out, known.output) or known.rounding
    else:
        text = _deviates(out, known.output, known.peak, call)
        if not text and known.exact is not None:
            text = _deviates(out, known.exact, known.peak, call)
    case = f"{collective.name} {algorithm.name} {call.dtype} {call.redop} count={call.count} root={call.root}"
    return text and f"{case}: {text}", out


def _buffers(
    comm: Communicator, collective: Collective, algorithm: Algorithm, call: Call, in_place: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tensors for a call: out of place they start one element into their memory, so nothing is aligned."""

    def allocate(elements: int) -> torch.Tensor:
        if algorithm.placement == "symmetric":
            return comm.empty((elements,), call.dtype)
        return torch.empty(elements, dtype=call.dtype, device=comm.device)

    elements_in, elements_out = collective.shapes(call)
    if in_place:
        return collective.in_place(call, allocate(max(elements_in, elements_out)))
    return allocate(elements_in + 1)[1:], allocate(elements_out + 1)[1:]


@lru_cache(maxsize=64)
def _input(rank: int, count: int, dtype: torch.dtype, elements: int) -> torch.Tensor:
    """Return the input of a rank: seeded by it, so that every rank knows everyone's."""
    generator = torch.Generator().manual_seed(1000 * rank + count % 997)
    if dtype == torch.bool:
        return torch.randint(0, 2, (elements,), generator=generator, dtype=torch.uint8).bool()
    if dtype.is_floating_point or dtype.is_complex:
        parts = 2 if dtype.is_complex else 1
        wide = torch.float64 if dtype in (torch.float64, torch.complex128) else torch.float32
        drawn = torch.randn(elements * parts, generator=generator, dtype=wide)
        drawn = torch.ldexp(drawn, torch.randint(-6, 7, (elements * parts,), generator=generator))
        return (torch.view_as_complex(drawn.view(-1, 2)) if parts == 2 else drawn).to(dtype)
    raw = torch.randint(0, 256, (elements * dtype.itemsize,), generator=generator, dtype=torch.uint8)
    return raw.view(dtype) if elements else torch.empty(0, dtype=dtype)


def _raw(x: torch.Tensor) -> bytes:
    return bits(x.contiguous().view(-1).cpu()).numpy().tobytes()


def _differs(out: torch.Tensor, expected: torch.Tensor) -> str:
    """Compare bits; any NaN equals any other."""
    out, expected = out.cpu(), expected.view(-1)
    if torch.equal(bits(out), bits(expected)):
        return ""
    equal = (bits(out) == bits(expected)).view(len(out), -1).all(dim=1)
    if out.dtype.is_floating_point or out.dtype.is_complex:
        wide = torch.complex128 if out.dtype.is_complex else torch.float64
        equal = equal | (out.to(wide).isnan() & expected.to(wide).isnan())
    return _first(equal, out, expected)


def _deviates(out: torch.Tensor, expected: torch.Tensor, peak: torch.Tensor | None, call: Call) -> str:
    """Compare within the rounding of `size` operations; an output may overflow where some order of them can."""
    if peak is None:
        return _differs(out, expected)
    info = torch.finfo(call.dtype)
    wide = torch.complex128 if call.dtype.is_complex else torch.float64
    got, want = out.cpu().to(wide), expected.to(wide).view(-1)
    # Cancelling terms leave an error of the size of the largest of them, here below 2^8.
    slack = 2 * call.size * info.eps * (want.abs() + (256 if call.redop in ("sum", "avg") else 0)) + info.tiny
    close = ((got - want).abs() <= slack) | (want.abs() > info.max / 2) | (want.isnan() & got.isnan())
    close |= (peak > info.max / 2) & ~got.isfinite()
    return _first(close, got, want)


def _is_far(out: torch.Tensor, expected: torch.Tensor, share: float, peak: float) -> str:
    """Compare within a share of what is expected, and of what terms that cancel may have been."""
    got, want = out.cpu().double(), expected.double().view(-1)
    return _first((got - want).abs() <= share * (want.abs() + peak), got, want)


def _first(good: torch.Tensor, out: torch.Tensor, expected: torch.Tensor) -> str:
    bad = (~good).nonzero().view(-1)
    if not len(bad):
        return ""
    at = int(bad[0])
    got, want = out[at].item(), expected[at].item()
    return f"wrong: {len(bad)} of {counted(len(good), 'element')}, the first at {at}: {got}, expected {want}"
