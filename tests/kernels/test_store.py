"""commlib.kernels.store is a loop over rows that writes each into its slot, whatever the layout, type and strides."""

import random

import pytest
import torch

from commlib.kernels import out_of_range_count, store
from tests.kernels.elements import random_of, same_bits

COPIED = (
    torch.uint8,
    torch.bool,
    torch.float8_e4m3fn,
    torch.bfloat16,
    torch.int16,
    torch.float32,
    torch.int64,
    torch.float64,
    torch.complex64,
)
LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}
INTEGERS = (torch.int32, torch.int64)
WIDTHS = (1, 3, 8, 31, 64, 257)  # of a head
SLOTS, CALLS = 24, 600
EXTREMES = (-(2**63), -1, SLOTS, 2**31, 2**63 - 1)

# The shape of the memory, and the cache in it, of heads x width elements per slot; names begin with the layout.
CACHES = {
    "flat": (lambda h, w: (SLOTS, h * w), lambda x: x),
    "flat, slots apart": (lambda h, w: (SLOTS, h * w + 5), lambda x: x[:, 3:-2]),
    "heads": (lambda h, w: (SLOTS, h, w), lambda x: x),
    "heads, apart": (lambda h, w: (SLOTS, h, w + 3), lambda x: x[..., :-3]),
    "heads, swapped": (lambda h, w: (h, SLOTS, w), lambda x: x.transpose(0, 1)),
    "NHD": (lambda h, w: (6, 4, h, w), lambda x: x),
    "NHD, pages of 3": (lambda h, w: (8, 3, h, w), lambda x: x),
    "NHD, one page": (lambda h, w: (1, SLOTS, h, w), lambda x: x),
    "NHD, pages of one": (lambda h, w: (SLOTS, 1, h, w), lambda x: x),
    "NHD, pool of both": (lambda h, w: (6, 2, 4, h, w), lambda x: x[:, 1]),
    "NHD, pages of 3 apart": (lambda h, w: (8, 4, h, w), lambda x: x[:, :3]),
    "NHD, swapped": (lambda h, w: (6, h, 4, w), lambda x: x.transpose(1, 2)),
    "HND": (lambda h, w: (6, h, 4, w), lambda x: x),
    "HND, pages of 3": (lambda h, w: (8, h, 3, w), lambda x: x),
    "HND, pool of both": (lambda h, w: (6, 2, h, 4, w), lambda x: x[:, 0]),
    "HND, swapped": (lambda h, w: (6, 4, h, w), lambda x: x.transpose(1, 2)),
}
ROWS = {
    "flat": (lambda n, h, w: (n, h * w), lambda x: x),
    "heads": (lambda n, h, w: (n, h, w), lambda x: x),
    "of a wider tensor": (lambda n, h, w: (n, 2 + h * w), lambda x: x[:, 2:]),
    "heads, apart": (lambda n, h, w: (n, 2 * h, w + 1), lambda x: x[:, ::2, 1:]),
    "heads, swapped": (lambda n, h, w: (h, n, w), lambda x: x.transpose(0, 1)),
    "every other": (lambda n, h, w: (2 * n, h * w), lambda x: x[::2]),
    "one, repeated": (lambda n, h, w: (1, h, w), lambda x: x),
}


def floats_of(dtype, shape, seed):
    """Numbers of all magnitudes, with what rounds, saturates and is no number."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator) * torch.exp2(torch.randint(-14, 18, shape, generator=generator))
    special = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 448, 464, 465, 57344, 61440, 1e-30])
    x.view(-1)[: len(special)] = special[: x.numel()]
    return x.to(dtype)


class Side:
    """K or V: memory with a cache in it, and rows for it."""

    def __init__(self, cache, dtype, heads, width, seed):
        shape, self.view = CACHES[cache]
        self.layout = cache[:3] if cache[:3] in ("NHD", "HND") else "NHD"
        self.heads, self.width = heads, width
        self.memory = random_of(dtype, shape(heads, width), seed)
        self.expected = self.memory.clone()

    @property
    def cache(self):
        return self.view(self.memory)

    def expect(self, slot, row, scale=None):
        """Write one row as the documentation says."""
        cache, place = self.view(self.expected), slot
        if cache.dim() == 4:
            cache = cache if self.layout == "NHD" else cache.transpose(1, 2)
            place = divmod(slot, cache.shape[1])
        row = row.reshape(self.heads, self.width)
        if row.dtype != cache.dtype:
            scale = torch.as_tensor(1.0 if scale is None else scale, dtype=torch.float32).reshape(-1, 1)
            limit = LARGEST[cache.dtype]
            row = (row.float() * (1 / scale)).clamp(-limit, limit).to(cache.dtype)
        cache[place].copy_(row.reshape(cache[place].shape))

    def check(self):
        same_bits(self.memory, self.expected)


def rows_of(form, dtype, size, seed, make=random_of):
    """Rows of (rows, heads, width) in one of the forms."""
    shape, view = ROWS[form]
    n, *_ = size
    rows = view(make(dtype, shape(*size), seed))
    return rows.expand(n, -1, -1) if form == "one, repeated" else rows


def slots_of(n, dtype=torch.int64, seed=0):
    return torch.randperm(SLOTS, generator=torch.Generator().manual_seed(seed))[:n].to(dtype)


def compare(k, v, slots, rows, *, skip=(), scales=(None, None)):
    """Run store and the reference; then K and V, with all that lies around them, have the same bits."""
    for i, slot in enumerate(slots.tolist()):
        if 0 <= slot < SLOTS and slot not in (skip if isinstance(skip, tuple) else (skip,)):
            k.expect(slot, rows[0][i], scales[0])
            v.expect(slot, rows[1][i], scales[1])
    store(k.cache, v.cache, slots, *rows, k_scale=scales[0], v_scale=scales[1], skip=skip, layout=k.layout)
    k.check()
    v.check()


@pytest.fixture(autouse=True)
def count_from_zero():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    out_of_range_count(kernel="store")
    yield
    torch.set_num_threads(threads)


def test_k_and_v_may_lie_between_each_other():
    pool = random_of(torch.bfloat16, (6, 2, 4, 3, 8), 1)
    expected, slots = pool.clone(), slots_of(9)
    k, v = (random_of(torch.bfloat16, (9, 3, 8), seed) for seed in (2, 3))
    for i, slot in enumerate(slots.tolist()):
        expected[slot // 4, 0, slot % 4] = k[i]
        expected[slot // 4, 1, slot % 4] = v[i]
    store(pool[:, 0], pool[:, 1], slots, k, v)
    same_bits(pool, expected)
    fused = random_of(torch.bfloat16, (SLOTS, 2, 24), 1)
    store(fused[:, 0], fused[:, 1], slots, k, v)
    same_bits(fused[slots, 0], k.view(9, 24))
    same_bits(fused[slots, 1], v.view(9, 24))


@pytest.mark.parametrize("target", LARGEST, ids=str)
def test_every_half_is_rounded_to_the_nearest(target):
    for dtype in (torch.bfloat16, torch.float16):
        k = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype).view(2, -1)
        cache = torch.zeros(2, k.shape[1], dtype=target)
        store(cache, torch.zeros(2, 1, dtype=target), torch.tensor([0, 1]), k, k[:, :1])
        same_bits(cache, k.float().clamp(-LARGEST[target], LARGEST[target]).to(target))


@pytest.mark.parametrize("shape", [(SLOTS, 20), (SLOTS, 1, 20), (6, 4, 1, 20), (6, 4, 5, 4)], ids=str)
def test_without_v_cache_both_go_into_one_row(shape):
    for nope, rope in ((16, 4), (1, 19), (19, 1)):
        cache, slots = random_of(torch.int16, shape, 1), slots_of(7)
        expected = cache.clone()
        k, v = random_of(torch.int16, (7, 1, nope), 2), random_of(torch.int16, (7, rope), 3)
        expected.view(SLOTS, 20)[slots] = torch.cat([k[:, 0], v], 1)
        store(cache, None, slots, k, v)
        same_bits(cache, expected)


def test_a_row_of_both_is_scaled_by_k_scale_unless_v_has_one():
    k, v, slots = floats_of(torch.bfloat16, (5, 512), 1), floats_of(torch.bfloat16, (5, 64), 2), slots_of(5)
    for scales, by in ((dict(k_scale=2.0), (2, 2)), (dict(k_scale=2.0, v_scale=torch.tensor(4.0)), (2, 4))):
        cache = torch.zeros(SLOTS, 576, dtype=torch.float8_e4m3fn)
        store(cache, None, slots, k, v, **scales)
        expected = torch.cat([k.float() / by[0], v.float() / by[1]], 1).clamp(-448, 448)
        same_bits(cache[slots], expected.to(torch.float8_e4m3fn))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_slots_outside_are_not_written_and_those_beyond_are_counted(dtype):
    extremes = [slot for slot in EXTREMES if abs(slot + 0.5) < 2 ** (dtype.itemsize * 8 - 1)]
    for cache in ("flat", "NHD, pages of 3", "HND"):
        k, v = Side(cache, torch.float32, 2, 4, 1), Side(cache, torch.float32, 2, 4, 2)
        slots = torch.tensor([3, *extremes, SLOTS - 1], dtype=dtype)
        compare(k, v, slots, [random_of(torch.float32, (len(slots), 8), 3)] * 2)
        beyond = sum(slot >= SLOTS for slot in extremes)
        assert out_of_range_count(kernel="store", reset=False) == beyond
        assert out_of_range_count("cpu", kernel="store") == beyond
    assert out_of_range_count(kernel="store") == 0


def test_reserved_slots_are_skipped_in_silence():
    slots = torch.tensor([0, 5, 6, 0, 9, SLOTS, 7])
    for skip, beyond in ((0, 1), ((), 1), ((0,), 1), ((9, 0, 7, 6), 1), (SLOTS, 0), (-1, 1), (True, 1)):
        k, v = Side("NHD", torch.int16, 2, 4, 1), Side("NHD", torch.int16, 2, 4, 2)
        compare(k, v, slots, [random_of(torch.int16, (len(slots), 8), 3)] * 2, skip=skip)
        assert out_of_range_count(kernel="store") == beyond


@pytest.mark.parametrize("n", [255, 256, 257, 5000])
def test_many_rows_are_stored(n):
    cache = torch.zeros(2, 2 * n, 3)
    slots = torch.randperm(2 * n, generator=torch.Generator().manual_seed(n))[:n]
    k, v = torch.randn(n, 3), torch.randn(n, 3)
    store(cache[0], cache[1], slots, k, v)
    expected = torch.zeros(2, 2 * n, 3)
    expected[0, slots], expected[1, slots] = k, v
    same_bits(cache, expected)


def test_nothing_to_store_is_legal():
    cache, rows, slots = torch.ones(4, 8), torch.empty(0, 8), torch.empty(0, dtype=torch.int32)
    store(cache, torch.ones(4, 8), slots, rows, rows)
    store(cache[:, :0], torch.ones(4, 0), torch.tensor([0, 9]), torch.empty(2, 0), torch.empty(2, 0))
    assert out_of_range_count(kernel="store") == 1
    store(cache[:0], torch.empty(0, 8), torch.tensor([0, -1]), torch.ones(2, 8), torch.ones(2, 8))
    assert out_of_range_count(kernel="store") == 1
    assert (cache == 1).all()


def test_random_calls_do_what_the_loop_does():
    choose = random.Random(7)
    for seed in range(CALLS):
        dtype = choose.choice(COPIED)
        target = choose.choice(list(LARGEST)) if dtype.is_floating_point and choose.random() < 0.5 else dtype
        if dtype in (torch.float64, torch.float8_e4m3fn):
            target = dtype
        heads, n = choose.choice((1, 2, 5)), choose.choice((0, 1, 3, 40))
        cache = choose.choice(list(CACHES))
        caches = cache, choose.choice((cache, "flat", "flat, slots apart", "heads"))
        k, v = (Side(each, target, heads, choose.choice(WIDTHS), seed + i) for i, each in enumerate(caches))
        v.layout = k.layout
        make = random_of if target == dtype else floats_of
        forms = [(choose.choice(list(ROWS)), dtype, (n, heads, side.width)) for side in (k, v)]
        rows = [rows_of(*form, seed + i, make) for i, form in enumerate(forms)]
        slots = torch.tensor([choose.randint(-3, SLOTS + 3) for _ in range(n)], dtype=choose.choice(INTEGERS))
        slots = choose.choice((slots, torch.stack([slots, slots], 1)[:, 1]))
        scales = [None, None]
        if target != dtype:
            known = [heads if max(x.dim(), side.cache.dim()) > 2 else 1 for x, side in zip(rows, (k, v), strict=True)]
            scales = [choose.choice((None, 0.3, 3, torch.tensor(2.0), torch.rand(count) + 0.1)) for count in known]
        compare(k, v, slots, rows, skip=choose.choice(((), 0, (1, 5))), scales=scales)
