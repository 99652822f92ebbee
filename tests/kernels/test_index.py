"""commlib.kernels.index is weights[ids], for every type, width and stride, with the ids that weights[ids] refuses."""

import pytest
import torch
from torch._subclasses import FakeTensorMode

from commlib.kernels import index, out_of_range_count
from commlib.tools.testing.conformance import TYPES
from tests.kernels.elements import random_of, same_bits

ROWS = 37
EXTREMES = (-(2**63), -(2**63) + 1, -1, ROWS, 2**31, 2**63 - 1)


def forms_of_ids(dtype):
    whole = torch.arange(0, 24, dtype=dtype).reshape(4, 6) * 7 % ROWS
    return {
        "one": torch.tensor([ROWS - 1], dtype=dtype),
        "scalar": torch.tensor(3, dtype=dtype),
        "1-D": torch.arange(ROWS - 1, -1, -1, dtype=dtype),
        "2-D": whole,
        "transposed": whole.t(),
        "every other": whole[1:, ::2],
        "many and not contiguous": torch.stack([torch.arange(700) % ROWS] * 2, 1)[:, 1].to(dtype),
        "expanded": torch.tensor([5], dtype=dtype).expand(3, 4),
        "repeated": torch.full((9,), 8, dtype=dtype),
        "empty": torch.empty(0, dtype=dtype),
        "empty 2-D": torch.empty(3, 0, dtype=dtype),
    }


@pytest.fixture(autouse=True)
def count_from_zero():
    out_of_range_count()


@pytest.mark.parametrize("width", [1, 3, 16, 31, 48, 128, 130, 4096])
def test_it_gathers_rows_of_any_type_and_width(width):
    for dtype in (*TYPES, torch.complex128):
        weights = random_of(dtype, (ROWS, width), 1)
        ids = torch.tensor([[0, 36, 5], [5, 17, 1]])
        same_bits(index(weights, ids), weights[ids])
        same_bits(index(weights, torch.tensor([8, -1])), torch.stack([weights[8], torch.zeros_like(weights[0])]))


@pytest.mark.parametrize("form", forms_of_ids(torch.int64))
def test_ids_have_any_shape_and_strides(form):
    for dtype in (torch.int32, torch.int64):
        weights, ids = random_of(torch.float32, (ROWS, 5), 1), forms_of_ids(dtype)[form]
        same_bits(index(weights, ids), weights[ids.long()])


def test_rows_have_any_stride():
    whole = random_of(torch.bfloat16, (2 * ROWS, 64), 1)
    ids = torch.tensor([0, ROWS - 1, 4])
    repeated = whole[3:4].expand(ROWS, 64)
    for weights in (whole[::2, 8:40], whole[:ROWS, 1:2], repeated, repeated[:, 5:]):
        same_bits(index(weights, ids), weights[ids])


def test_a_table_without_rows_gives_zero_rows_and_one_without_columns_empty_rows():
    for shape in ((0, 3), (ROWS, 0)):
        same_bits(index(torch.empty(shape), torch.tensor([0, -1])), torch.zeros(2, shape[1]))


@pytest.mark.parametrize("start", [0, 1, 1000, 2**63 - 1 - ROWS])
def test_a_shard_answers_its_own_ids_and_no_others(start):
    weights = random_of(torch.float32, (ROWS, 4), 1)
    places = (*EXTREMES, start - 1, start, start + ROWS - 1, start + ROWS)
    ids = [value for value in places if -(2**63) <= value < 2**63]
    result = index(weights, torch.tensor(ids), vocab_range=(start, ROWS), out_of_range="raise")
    for row, value in zip(result, ids, strict=True):
        same_bits(row, weights[value - start] if start <= value < start + ROWS else torch.zeros(4))


def test_count_tells_how_many_rows_were_outside():
    weights, ids = random_of(torch.float32, (ROWS, 5), 1), torch.tensor([3, *EXTREMES, 4])
    index(weights, ids)
    index(weights, ids, vocab_range=(1, 2), out_of_range="count")  # ids of other shards are no mistake
    assert out_of_range_count(reset=False) == 0
    index(weights, ids, out_of_range="count")
    index(weights[:, :0], ids[:2], out_of_range="count")
    assert out_of_range_count(reset=False) == len(EXTREMES) + 1
    assert out_of_range_count("cpu") == len(EXTREMES) + 1
    assert out_of_range_count() == 0


def test_raise_names_the_first_bad_id_and_writes_nothing():
    weights, out = torch.ones(ROWS, 5), torch.full((2, 3, 5), 7.0)
    ids = torch.tensor([[0, 1, 2], [ROWS, -1, 3]])
    for given in (ids, ids.int(), torch.stack([ids, ids], -1)[..., 0]):
        with pytest.raises(ValueError, match=r"^ids\[1, 0\] is 37, but weights has 37 rows, numbered from 0; "):
            index(weights, given, out=out, out_of_range="raise")
    assert (out == 7).all()
    late = torch.zeros(600, 2, dtype=torch.int64)[:, 0]
    late[300], late[555] = -(2**63), ROWS
    with pytest.raises(ValueError, match=r"^ids\[300\] is -9223372036854775808, "):
        index(weights, late, out_of_range="raise")
    with pytest.raises(ValueError, match=r"^ids is -1, "):
        index(weights, torch.tensor(-1), out_of_range="raise")
    same_bits(index(weights, ids[:1], out_of_range="raise"), weights[ids[:1]])


WEIGHTS, IDS = torch.zeros(10, 4), torch.tensor([1, 2])
STORAGE = torch.zeros(100)
BAD = {
    "float ids": (dict(ids=IDS.double()), "ids is neither int32 nor int64"),
    "unsigned ids": (dict(ids=IDS.to(torch.uint64)), "ids is neither int32"),
    "1-D weights": (dict(weights=WEIGHTS[0]), "weights has 1 dimension"),
    "transposed weights": (dict(weights=WEIGHTS.t()), "the elements of a row of weights are 4 apart"),
    "quantised or sparse weights": (dict(weights=WEIGHTS.to_sparse()), "but index needs dense tensors"),
    "conjugate weights": (dict(weights=WEIGHTS.to(torch.complex64).conj()), "lazy conjugate"),
    "weights with a gradient": (dict(weights=torch.nn.Parameter(WEIGHTS.clone())), "index has no backward"),
    "out of another shape": (dict(out=torch.zeros(4, 2)), r"the shape \[4, 2\], .* give \[2, 4\]"),
    "out of another rank": (dict(out=torch.zeros(8)), r"out has the shape \[8\]"),
    "out of another type": (dict(out=torch.zeros(2, 4, dtype=torch.int32)), "different types"),
    "out not contiguous": (dict(out=torch.zeros(4, 2).t()), "out is not contiguous"),
    "out on another device": (dict(out=torch.zeros(2, 4, device="meta")), r"different devices \(.*meta"),
    "ids on another device": (dict(ids=IDS.to("meta")), r"different devices \(.*meta"),
    "out in weights": (dict(weights=STORAGE[:40].view(10, 4), out=STORAGE[36:44].view(2, 4)), "out overlaps weights"),
    "out in ids": (dict(ids=STORAGE[:2].view(torch.int32), out=STORAGE[1:9].view(2, 4)), "out overlaps ids"),
    "negative start": (dict(vocab_range=(-1, 4)), r"vocab_range is \(-1, 4\)"),
    "negative length": (dict(vocab_range=(1, -4)), r"vocab_range is \(1, -4\)"),
    "range longer than weights": (dict(vocab_range=(5, 11)), "starts at 5 and is 11 long, but must .* fit the 10 rows"),
    "range beyond int64": (dict(vocab_range=(2**63 - 4, 4)), "fit int64"),
    "unknown policy": (dict(out_of_range="clamp"), "out_of_range is 'clamp', but must be one of zero, count, raise"),
}


def test_bad_input_is_refused_in_one_line():
    for given, words in BAD.values():
        arguments = {"weights": WEIGHTS, "ids": IDS, **given}
        with pytest.raises(ValueError, match=words) as caught:
            index(arguments.pop("weights"), arguments.pop("ids"), **arguments)
        assert "\n" not in str(caught.value)


def test_an_output_may_lie_next_to_what_is_read():
    pool = torch.arange(44.0)
    for weights, out in ((pool[:40], pool[40:]), (pool[4:], pool[:4])):
        same_bits(index(weights.view(10, 4), torch.tensor([3]), out=out.view(1, 4)), weights[12:16].view(1, 4))


def test_what_is_no_tensor_is_a_type_error():
    for arguments in ((WEIGHTS, [1, 2]), (WEIGHTS.numpy(), IDS)):
        with pytest.raises(TypeError, match=r"must be a torch\.Tensor"):
            index(*arguments)


def test_a_parameter_is_gathered_without_gradients():
    with torch.no_grad():
        same_bits(index(torch.nn.Parameter(WEIGHTS + 1), IDS), torch.ones(2, 4))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_it_compiles_without_a_graph_break(backend):
    def embed(weights, ids, out):
        index(weights, ids, out=out, vocab_range=(2, 5))
        return index(weights, ids) * 2

    weights, ids = random_of(torch.int32, (10, 4), 1), torch.tensor([2, 9, -1])
    out = torch.ones(3, 4, dtype=torch.int32)
    expected = torch.stack([weights[2], weights[9], torch.zeros_like(weights[0])])
    compiled = torch.compile(embed, fullgraph=True, backend=backend)
    same_bits(compiled(weights, ids, out), expected * 2)
    same_bits(out, torch.stack([weights[0], torch.zeros_like(weights[0]), torch.zeros_like(weights[0])]))


def test_torch_knows_shapes_and_mutations_of_the_operators():
    weights, ids, out = torch.randn(10, 4), torch.tensor([[2, 9, -1]]), torch.ones(1, 3, 4)
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(torch.ops.commlib.index_into.default, (out, weights, ids, 0, 10, "zero"), test_utils=tests)


def test_fake_and_meta_tensors_have_the_shape_of_the_result():
    for device in ("cpu", "cuda"):  # a GPU's tensors, without a GPU
        with FakeTensorMode():
            weights = torch.empty(10, 4, dtype=torch.bfloat16, device=device)
            result = index(weights, torch.zeros(3, 2, dtype=torch.int32, device=device))
        assert (result.shape, result.dtype, result.device.type) == ((3, 2, 4), torch.bfloat16, device)
    assert index(WEIGHTS.to("meta"), IDS.to("meta")).shape == (2, 4)
