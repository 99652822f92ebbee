"""What commlib.kernels.store refuses, and that torch.compile and tensors without memory can call it."""

import pytest
import torch
from torch._subclasses import FakeTensorMode

import commlib
from commlib.kernels import out_of_range_count, store

FP8 = torch.float8_e4m3fn
CACHE, ROWS, SLOTS = torch.zeros(10, 8), torch.ones(2, 8), torch.tensor([1, 2])
POOL = torch.zeros(400)


def good():
    return dict(k_cache=torch.zeros(10, 8), v_cache=torch.zeros(10, 8), slots=SLOTS, k=ROWS, v=ROWS)


def call(given):
    store(*(given[name] for name in good()), **{name: given[name] for name in given.keys() - good().keys()})


def both(cache):
    return dict(k_cache=cache, v_cache=cache.clone())


def with_gradient(tensor):
    return tensor.clone().requires_grad_()


IN_FP8, IN_HEADS = both(CACHE.to(FP8)), ROWS.view(2, 4, 2)

BAD = {
    "unknown layout": (dict(layout="NDH"), "layout is 'NDH', but must be one of NHD, HND"),
    "five reserved slots": (dict(skip=(1, 2, 3, 4, 5)), "skip names 5 slots, but at most 4 can be reserved"),
    "expanded cache": (dict(v_cache=CACHE[:1].expand(10, 8)), "v_cache is expanded: all 10 in its dimension 0 are the"),
    "expanded pages": (both(torch.zeros(5, 1, 1, 8).expand(5, 2, 1, 8)), "expanded: all 2 in its dimension 1"),
    "1-D cache": (dict(k_cache=CACHE[0]), r"k_cache has 1 dimension, but a cache is \[slots, width\]"),
    "5-D cache": (dict(v_cache=CACHE[None, None, None]), "v_cache has 5 dimensions"),
    "4-D rows": (dict(k=ROWS[None, None]), r"k names|slots names 2 slots, but k has 1 row"),
    "1-D rows": (dict(slots=torch.arange(8), k=ROWS[0], v=torch.ones(8, 8)), r"k has 1 dimension, but store takes"),
    "transposed cache": (dict(k_cache=torch.zeros(8, 10).t()), "the elements in the last dimension of k_cache are 10"),
    "transposed rows": (dict(v=torch.ones(8, 2).t()), "the elements in the last dimension of v are 2 apart"),
    "fewer slots than rows": (dict(slots=SLOTS[:1]), "slots names 1 slot, but k has 2 rows and v has 2; pass as many"),
    "fewer rows of v": (dict(v=ROWS[:1]), "slots names 2 slots, but k has 2 rows and v has 1"),
    "2-D slots": (dict(slots=SLOTS[None]), r"slots has 2 dimensions, .*; pass slots\.flatten\(\)"),
    "float slots": (dict(slots=SLOTS.double()), r"slots is neither int32 nor int64; pass slots\.long\(\)"),
    "narrow rows": (dict(k=ROWS[:, :6]), r"k has rows of 1 x 6 elements, but k_cache has slots of 1 x 8; pass k as"),
    "other heads": (dict(v_cache=torch.zeros(10, 4, 2), v=torch.ones(2, 2, 4)), "v has rows of 2 x 4 .* of 4 x 2"),
    "HND taken for NHD": (dict(**both(torch.zeros(5, 4, 2, 2)), k=IN_HEADS), "k has rows of 4 x 2 .* of 2 x 2"),
    "fewer slots in v_cache": (dict(v_cache=torch.zeros(9, 8)), "k_cache has 10 slots, but v_cache 9"),
    "two sizes": (
        dict(k_cache=torch.zeros(5, 3, 1, 8)[:, :2], v_cache=torch.zeros(2, 6, 1, 8)[:, :5]),
        "one page size",
    ),
    "rows that do not add up": (dict(v_cache=None), "k has 8 elements in a row and v 8, but a slot of k_cache has 8"),
    "a row in pieces": (dict(v_cache=None, k_cache=torch.zeros(10, 2, 9)[..., :8]), "k_cache are 9 elements apart"),
    "other type": (dict(k=ROWS.half()), "k is float16, but its cache is float32; convert k"),
    "v of another type": (dict(v_cache=CACHE.int(), v=ROWS.int()), "k is float32 for float32 and v is int32 for int32"),
    "two kinds of 8 bits": (
        dict(k_cache=CACHE.to(FP8), v_cache=CACHE.to(torch.float8_e5m2)),
        "k is float32 for float8_e4m3fn and v is float32 for float8_e5m2; pass K and V of one type",
    ),
    "double into 8 bits": (dict(**IN_FP8, k=ROWS.double()), "k is float64, but its cache is float8_e4m3fn"),
    "8 bits into bfloat16": (dict(k_cache=CACHE.bfloat16(), k=ROWS.to(FP8)), "k is float8_e4m3fn, but its cache is bf"),
    "bytes are not 8-bit floats": (dict(k_cache=CACHE.byte(), v_cache=CACHE.byte()), "k is float32, but .* uint8"),
    "conjugate rows": (dict(**both(CACHE.cfloat()), k=ROWS.cfloat().conj(), v=ROWS.cfloat()), r"pass k\.resolve_conj"),
    "a scale of what is copied": (dict(k_scale=2.0), "k_scale is given, but rows of float32 go"),
    "a scale of 8-bit rows": (dict(**IN_FP8, k=ROWS.to(FP8), v=ROWS.to(FP8), v_scale=torch.ones(1)), "v_scale is giv"),
    "scale 0": (dict(**IN_FP8, k_scale=0.0), "k_scale is 0, but must be above 0 and finite in float32"),
    "scale that is no number": (dict(**IN_FP8, v_scale=float("nan")), "v_scale is nan"),
    "scale without a reciprocal": (dict(**IN_FP8, v_scale=1e-39), "v_scale is 1e-39"),
    "scale beyond float32": (dict(**IN_FP8, v_scale=1e39), r"v_scale is 1e\+39"),
    "three scales": (dict(**IN_FP8, k_scale=torch.ones(3)), "k_scale has 3 elements, but must have 1"),
    "three for four heads": (dict(**IN_FP8, k=IN_HEADS, k_scale=torch.ones(3)), "one for each of the 4 heads"),
    "scale of another type": (dict(**IN_FP8, k_scale=torch.ones(1).double()), "k_scale is float64, but must be"),
    "scales apart": (dict(**IN_FP8, k=IN_HEADS, k_scale=torch.ones(8)[::2]), "must be contiguous float32; pass"),
    "one cache for both": (dict(k_cache=CACHE, v_cache=CACHE), "k_cache overlaps v_cache"),
    "one cache with gaps for both": (
        dict(k_cache=POOL.as_strided((10, 8), (12, 1)), v_cache=POOL.as_strided((10, 8), (12, 1))),
        "k_cache overlaps v_cache",
    ),
    "caches that meet": (
        dict(k_cache=POOL[:80].view(10, 8), v_cache=POOL[79:159].view(10, 8)),
        "k_cache overlaps v_cache",
    ),
    "rows of the cache": (dict(v_cache=CACHE, k=CACHE[3:5]), "k overlaps a cache, which is written while it is read"),
    "end in it": (dict(k_cache=POOL[40:120].view(10, 8), k=POOL.as_strided((2, 8), (40, 1), 4)), "k overlaps a cache"),
    "it in rows": (dict(k_cache=POOL.as_strided((10, 8), (12, 1), 8), k=POOL[:16].view(2, 8)), "k overlaps a cache"),
    "slots in the cache": (dict(k_cache=POOL[:80].view(10, 8), slots=POOL[4:6].view(torch.int32)), "slots overlaps"),
    "k with a gradient": (dict(k=with_gradient(ROWS)), "a cache requires a gradient, but store has no backward"),
    "v with a gradient": (dict(v=with_gradient(ROWS)), "requires a gradient"),
    "K cache with a gradient": (dict(k_cache=torch.nn.Parameter(CACHE.clone())), "requires a gradient"),
    "cache with a gradient": (dict(v_cache=torch.nn.Parameter(CACHE.clone())), "requires a gradient"),
    "sparse rows": (dict(k=ROWS.to_sparse()), "but store needs dense tensors of plain bytes"),
}


def test_bad_input_is_refused_in_one_line_and_nothing_is_written():
    for given, words in BAD.values():
        arguments = {**good(), **given}
        caches = [arguments[name] for name in ("k_cache", "v_cache") if arguments[name] is not None]
        before = [cache.detach().clone() for cache in caches]
        with pytest.raises(ValueError, match=words) as caught:
            call(arguments)
        assert "\n" not in str(caught.value)
        for cache, kept in zip(caches, before, strict=True):
            assert torch.equal(cache.detach().contiguous().view(torch.uint8), kept.contiguous().view(torch.uint8))


def test_what_is_no_tensor_is_a_type_error():
    for name in good():
        arguments = {**good(), name: [1, 2]}
        with pytest.raises(TypeError, match=f"{name} of store is a list, but must be a torch.Tensor"):
            store(*arguments.values())
    with pytest.raises(TypeError, match="k_scale of store is a str, but must be a number or a torch tensor"):
        store(*good().values(), k_scale="1")
    for skip in ((1.5,), {1}):
        with pytest.raises(TypeError, match="skip"):
            store(*good().values(), skip=skip)


def test_tensors_with_a_gradient_are_stored_without_one():
    given = {**good(), "k": with_gradient(ROWS), "v_cache": torch.nn.Parameter(torch.zeros(10, 8))}
    with torch.no_grad():
        store(*given.values())
    assert torch.equal(given["k_cache"][1:3], ROWS)
    assert torch.equal(given["v_cache"].detach()[1:3], ROWS)


def test_autograd_hears_that_caches_were_written():
    given = good()
    call(given)
    assert [given[name]._version for name in ("k_cache", "v_cache")] == [1, 1]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("scale", [None, 2.0, torch.full((4,), 2.0)], ids=["no scale", "number", "tensor"])
def test_it_compiles_without_a_graph_break(backend, scale):
    dtype = torch.float32 if scale is None else FP8

    def step(k_cache, v_cache, slots, k, v):
        k = k * 2
        store(k_cache, v_cache, slots, k, v, k_scale=scale, skip=0, layout="HND")
        return k_cache.float().sum()

    rows, caches = torch.randn(3, 4, 2), [torch.zeros(5, 4, 2, 2, dtype=dtype) for _ in range(4)]
    slots = torch.tensor([7, 0, 3])
    result = torch.compile(step, fullgraph=True, backend=backend)(*caches[:2], slots, rows, rows)
    assert result == step(*caches[2:], slots, rows, rows)
    for compiled, eager in zip(caches[:2], caches[2:], strict=True):
        assert torch.equal(compiled.float(), eager.float())
        assert eager.float().any()


def test_torch_knows_the_mutations_of_the_operator():
    tests = ("test_schema", "test_faketensor")
    for v_cache, v in ((torch.zeros(10, 8), ROWS), (None, ROWS[:, :0])):
        given = (torch.zeros(10, 8), v_cache, SLOTS, ROWS, v, False, False, None, None, None, None, [0])
        torch.library.opcheck(torch.ops.commlib.store.default, given, test_utils=tests)


def test_tensors_without_memory_are_taken():
    store(*(tensor.to("meta") for tensor in good().values()))
    with FakeTensorMode():
        rows, slots = torch.ones(2, 8), torch.zeros(2, dtype=torch.int32)
        store(torch.empty(10, 8), None, slots, rows[:, :4], rows[:, 4:])
        given = [torch.empty(10, 8, device="cuda") for _ in range(2)]
        slots, rows = torch.zeros(2, dtype=torch.int32, device="cuda"), torch.ones(2, 8, device="cuda")
        store(*given, slots, rows, rows)


def test_tensors_on_two_devices_are_refused():
    for name in good():
        given = {**good(), name: good()[name].to("meta")}
        with pytest.raises(ValueError, match=r"different devices \(.*meta.*\); move them to one"):
            store(*given.values())


def test_counters_are_one_for_each_kernel():
    for kernel in ("index", "store", "metadata"):
        out_of_range_count(kernel=kernel)
    store(*{**good(), "slots": torch.tensor([10, 11])}.values())
    assert [out_of_range_count(kernel=kernel) for kernel in ("index", "metadata", "store")] == [0, 0, 2]
    with pytest.raises(ValueError, match="kernel is 'gather', but must be one of index, metadata, store"):
        out_of_range_count(kernel="gather")
    for device in ("meta",) if torch.cuda.is_available() else ("meta", "cuda"):
        with pytest.raises(commlib.Unsupported, match=f"no kernel of commlib runs on {device} here"):
            out_of_range_count(device)
