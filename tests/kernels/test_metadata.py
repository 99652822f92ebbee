"""commlib.kernels.metadata is a loop over requests and their new tokens, whatever the batch, types and strides."""

import random

import pytest
import torch
from torch._subclasses import FakeTensorMode

from commlib.kernels import Metadata, metadata, out_of_range_count

PER_TOKEN = ("expanded", "clipped", "positions", "request_index")
LARGEST = 2**31 - 1


def reference(extend_lens, seq_lens, topk):
    """The documented meaning, one request and one token at a time."""
    rows, offsets = [], [0]
    for request, (extend, seq) in enumerate(zip(extend_lens, seq_lens, strict=True)):
        for j in range(max(extend, 0)):
            expanded = max(seq - extend + 1 + j, 0)
            rows.append((expanded, min(expanded, topk), max(expanded - 1, 0), request))
        offsets.append(len(rows))
    columns = [list(column) for column in zip(*rows, strict=True)] or [[], [], [], []]
    return dict(zip(PER_TOKEN, columns, strict=True)), offsets


def check(result, extend_lens, seq_lens, topk, *, rest=None):
    """Compare with the reference; `rest` is what the elements behind the last token must be."""
    columns, offsets = reference(extend_lens, seq_lens, topk)
    assert result.total.tolist() == offsets[-1:]
    assert result.cu_seqlens.tolist() == offsets
    for name, column in columns.items():
        output = getattr(result, name)
        assert output.dtype is torch.int32
        assert output[: len(column)].tolist() == column, name
        if rest is not None:
            assert set(output[len(column) :].tolist()) <= {rest}, name
    return len(columns["expanded"])


def poisoned(capacity, requests):
    sizes = dict.fromkeys(Metadata._fields, capacity) | {"cu_seqlens": requests + 1, "total": 1}
    return Metadata(**{name: torch.full((size,), -77, dtype=torch.int32) for name, size in sizes.items()})


def forms_of(lengths, dtype, choose):
    tensor = torch.tensor(lengths, dtype=dtype)
    return choose.choice((tensor, torch.stack([tensor] * 3, 1)[:, 1], torch.cat([tensor, tensor])[: len(tensor)]))


def batches():
    choose = random.Random(3)
    for number in range(1000):
        requests = (0, 1, choose.randint(2, 9), choose.randint(10, 600))[number % 4 if number % 50 else 3]
        longest = choose.choice((0, 1, 4, 8, 70))
        extend = [choose.randint(-1 if number % 3 else 0, longest) for _ in range(requests)]
        seq = [choose.choice((choose.randint(0, 9), max(e, 0) + choose.randint(0, 5000))) for e in extend]
        yield number, choose, extend, seq, choose.choice((0, 1, 5, 2048))


def test_random_batches_get_what_the_loop_gives():
    for number, choose, extend, seq, topk in batches():
        types = [choose.choice((torch.int32, torch.int64)) for _ in range(2)]
        lengths = [forms_of(given, dtype, choose) for given, dtype in zip((extend, seq), types, strict=True)]
        tokens = check(metadata(*lengths, topk), extend, seq, topk)
        room = tokens + choose.choice((0, 1, 37))
        out = poisoned(room, len(seq))
        pad = choose.choice((None, 0, -1, 9))
        assert metadata(*lengths, topk, pad=pad, out=out) is out, number
        check(out, extend, seq, topk, rest=-77 if pad is None else pad)


@pytest.mark.parametrize("window", [0, 1, 3, 64])
@pytest.mark.parametrize("requests", [0, 1, 7, 300])
def test_a_uniform_window_is_given_as_a_number(requests, window):
    seq = torch.randint(0, 5000, (requests,), generator=torch.Generator().manual_seed(1))
    extend = [window] * requests
    result = metadata(window, seq, 2048)
    assert result.expanded.shape == (requests * window,)
    check(result, extend, seq.tolist(), 2048)
    same = metadata(torch.tensor(extend, dtype=torch.int32), seq, 2048)
    assert all(torch.equal(a, b) for a, b in zip(result, same, strict=True))
    check(metadata(window, seq, 2048, capacity=requests * window + 5, pad=-3), extend, seq.tolist(), 2048, rest=-3)


def test_lengths_below_what_is_new_give_zeros():
    for extend, seq in (([4, 3], [2, 0]), ([2, 1], [-5, 7 - 2**32]), ([2, 1], [-(2**63), 1]), ([-(2**63), 2], [7, 7])):
        check(metadata(torch.tensor(extend), torch.tensor(seq), 3), extend, seq, 3)


def test_one_corrupt_length_is_named_before_memory_is_taken_for_it():
    with pytest.raises(ValueError, match=r"extend_lens\[1\] is 2147483644, but seq_lens\[1\] is 7: .* 8.6 GB each"):
        metadata(torch.tensor([3, LARGEST - 3]), torch.tensor([10, 7]), 8)


def test_the_largest_lengths_fit():
    seq, topk = [LARGEST, LARGEST - 1], 2**62
    check(metadata(torch.tensor([2, 3]), torch.tensor(seq), topk), [2, 3], seq, topk)


@pytest.mark.parametrize(
    "unwanted", [(name,) for name in Metadata._fields] + [PER_TOKEN, ("cu_seqlens", "total")], ids=str
)
def test_outputs_that_nobody_wants_are_left_out(unwanted):
    out = poisoned(6, 2)._replace(**dict.fromkeys(unwanted))
    assert metadata(torch.tensor([2, 3]), torch.tensor([7, 1]), 4, pad=5, out=out) is out
    expected = metadata(torch.tensor([2, 3]), torch.tensor([7, 1]), 4, pad=5, capacity=6)
    for name in set(Metadata._fields) - set(unwanted):
        assert torch.equal(getattr(out, name), getattr(expected, name)), name


def test_more_tokens_than_capacity_are_refused_and_nothing_is_written():
    out = poisoned(4, 2)
    words = r"^the requests have 5 new tokens, but the outputs hold 4; pass capacity=5 or more, or a larger out$"
    for given in (dict(out=out), dict(capacity=4)):
        with pytest.raises(ValueError, match=words):
            metadata(torch.tensor([2, 3]), torch.tensor([7, 3]), 4, pad=0, **given)
    assert all((output == -77).all() for output in out)
    assert out_of_range_count(kernel="metadata") == 0


def out_with(**changed):
    return dict(out=poisoned(5, 2)._replace(**changed))


EXTEND, SEQ = torch.tensor([2, 3]), torch.tensor([7, 3])
POOL = torch.zeros(100, dtype=torch.int32)
BAD = {
    "negative topk": (dict(topk=-1), "topk is -1, but must be 0 or more"),
    "negative window": (dict(extend_lens=-2), "extend_lens is -2, but must be 0 or more"),
    "negative capacity": (dict(capacity=-1), "capacity is -1, but must be 0 or more"),
    "pad beyond int32": (dict(pad=2**31), "pad is 2147483648, but must fit int32"),
    "pad below int32": (dict(pad=-(2**31) - 1), "pad is -2147483649, but must fit int32"),
    "float lengths": (dict(seq_lens=SEQ.float()), r"neither int32 nor int64; pass seq_lens\.long"),
    "short new lengths": (dict(extend_lens=EXTEND.short()), "extend_lens is neither int32"),
    "2-D lengths": (dict(seq_lens=SEQ[None]), r"seq_lens has 2 dimensions, but must have 1, .*pass seq_lens\.flatten"),
    "0-D lengths": (dict(seq_lens=SEQ[0]), "seq_lens has 0 dimensions"),
    "an out that lacks an entry": (dict(out=poisoned(5, 2)[:5]), "out has 5 entries, but Metadata has 6"),
    "0-D new lengths": (dict(extend_lens=EXTEND[0]), "extend_lens has 0 dimensions"),
    "fewer new lengths": (dict(extend_lens=EXTEND[:1]), "extend_lens has 1 lengths, but seq_lens 2; pass one of each"),
    "too many tokens": (dict(extend_lens=torch.tensor([LARGEST, 1]), capacity=1), "more than 2147483647 tokens"),
    "far too many tokens": (dict(extend_lens=torch.tensor([2**63 - 1, 2**63 - 1])), "more than 2147483647 tokens"),
    "a window of too many": (dict(extend_lens=2**62, capacity=1), "more than 2147483647 tokens"),
    "the largest window": (
        dict(extend_lens=LARGEST, seq_lens=SEQ[:1], capacity=1),
        "the requests have 2147483647 new tokens, but the outputs hold 1",
    ),
    "too long a request": (dict(seq_lens=torch.tensor([1, 2**31])), r"seq_lens\[1\] is 2147483648, but the outputs"),
    "capacity and out": (dict(capacity=5, out=poisoned(5, 2)), "capacity is 5, but out has one too; pass one of them"),
    "out of other requests": (dict(out=poisoned(5, 3)), "cu_seqlens has 4 elements, but must have 3; pass an out of"),
    "out of two capacities": (out_with(positions=POOL[:4]), "positions has 4 .* must have 5"),
    "two totals": (out_with(total=POOL[:2]), "total has 2 elements, but must have 1"),
    "out of another type": (out_with(clipped=POOL[:5].long()), "clipped must be int32, contig"),
    "2-D out": (out_with(positions=POOL[:5].view(5, 1)), "positions must be int32, contiguous and of 1 dimension"),
    "out with steps": (out_with(expanded=POOL[:10:2]), "expanded must be int32, contiguous"),
    "in each other": (out_with(positions=POOL[:5], expanded=POOL[4:9]), "overlaps expanded; pass"),
    "in its neighbour": (out_with(total=POOL[4:5], request_index=POOL[:5]), "total overlaps request_index; pass"),
    "in the lengths": (dict(seq_lens=POOL[:2], **out_with(total=POOL[1:2])), "total overlaps seq_lens"),
    "in new lengths": (dict(extend_lens=POOL[:2], **out_with(total=POOL[1:2])), "total overlaps extend_lens"),
}


def test_bad_input_is_refused_in_one_line():
    for given, words in BAD.values():
        arguments = {"extend_lens": EXTEND, "seq_lens": SEQ, "topk": 4, **given}
        with pytest.raises(ValueError, match=words) as caught:
            metadata(**arguments)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("pad", [-(2**31), LARGEST])
def test_the_pad_may_be_any_int32(pad):
    check(metadata(EXTEND, SEQ, 3, capacity=9, pad=pad), [2, 3], [7, 3], 3, rest=pad)


def test_what_is_no_tensor_is_a_type_error():
    for said, given in (("seq_lens of .* but must be a", ([1, 2], [3])), ("extend_lens .* an int or a", (1.0, SEQ))):
        with pytest.raises(TypeError, match=f"{said} torch.Tensor"):
            metadata(*given, 4)
    with pytest.raises(TypeError, match="total of metadata is an int"):
        metadata(EXTEND, SEQ, 4, **out_with(total=5))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_it_compiles_without_a_graph_break(backend):
    def plan(extend_lens, seq_lens, out):
        metadata(extend_lens, seq_lens, 3, pad=0, out=out)
        made = metadata(2, seq_lens, 3)
        return made.expanded + 1, metadata(extend_lens, seq_lens, 3, capacity=9, pad=4)

    out = poisoned(6, 2)
    expanded, made = torch.compile(plan, fullgraph=True, backend=backend)(EXTEND, SEQ, out)
    assert expanded.tolist() == [7, 8, 3, 4]
    check(out, [2, 3], [7, 3], 3, rest=0)
    check(made, [2, 3], [7, 3], 3, rest=4)


def test_torch_knows_the_mutations_of_the_operator():
    operator, tests = torch.ops.commlib.metadata_into.default, ("test_schema", "test_faketensor")
    torch.library.opcheck(operator, (EXTEND, 0, SEQ, 4, None, *poisoned(5, 2)), test_utils=tests)
    torch.library.opcheck(operator, (None, 2, SEQ, 4, 7, *poisoned(5, 2)[:5], None), test_utils=tests)


def test_tensors_without_memory_have_the_shapes_of_the_result():
    with FakeTensorMode():
        for device in ("cpu", "cuda"):
            lengths = torch.empty(3, dtype=torch.int64, device=device)
            result = metadata(lengths, lengths, 4, capacity=12)
            assert [tuple(output.shape) for output in result] == [(12,), (12,), (4,), (12,), (12,), (1,)]
            assert metadata(4, lengths, 4).positions.shape == (12,)
            assert {output.device.type for output in result} == {device}
            with pytest.raises(ValueError, match=r"the host does not know .*; pass capacity= or out="):
                metadata(lengths, lengths, 4)
    meta = SEQ.to("meta")
    assert metadata(meta, meta, 4, capacity=7).expanded.shape == (7,)
    with pytest.raises(ValueError, match="extend_lens is on meta"):
        metadata(meta, meta, 4)
    with pytest.raises(ValueError, match="different devices"):
        metadata(meta, SEQ, 4, capacity=5)
