"""prefix_match is the length of the common prefix in whole pages, for every type, length and x86-64 level."""

import array
from itertools import product

import numpy as np
import pytest
import torch

from commlib import env
from commlib.errors import Unsupported
from commlib.kernels import prefix_match, prefix_match_many
from commlib.native import library

LENGTHS = (*range(0, 34), 63, 64, 65, 127, 128, 129, 255, 257, 511, 1029, 4099)
WIDTHS = tuple(product((np.int32, np.int64), repeat=2))


def reference(a, b, page_size=1):
    same = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return same - same % page_size


def agrees_everywhere():
    """Put the first difference at every place that a loop could miss, off the start of a cache line, too."""
    rng = np.random.default_rng(0)
    for (first, second), length in product(WIDTHS, LENGTHS):
        whole = rng.integers(-(2**31), 2**31, length + 3)
        for start in (0, 3) if length > 30 else (0,):
            a, b = whole[start:].astype(first), whole[start:].astype(second)
            assert prefix_match(a, b) == len(a)
            for at in {*range(0, len(a), 1 + len(a) // 12), *range(max(0, len(a) - 5), len(a))}:
                b[at] ^= 1 << (at % 31)
                assert prefix_match(a, b) == prefix_match(b, a) == at
                assert prefix_match(a, b, 16) == at - at % 16
                b[at] = whole[start + at]


@pytest.mark.parametrize("isa", ["v2", "v3", "v4"])
def test_every_level_agrees(isa):
    try:
        library.prefix_use(isa)
    except Unsupported:
        pytest.skip(f"this CPU does not have {isa}")
    try:
        agrees_everywhere()
    finally:
        library.prefix_use(env.ISA.get())


@pytest.mark.parametrize("widths", WIDTHS, ids=str)
@pytest.mark.parametrize("page_size", [1, 2, 3, 16])
def test_lengths_may_differ_and_pages_are_whole(page_size, widths):
    for a, b in product(range(40), (0, 1, 15, 16, 17, 31, 39)):
        x, y = np.arange(a, dtype=widths[0]), np.arange(b, dtype=widths[1])
        assert prefix_match(x, y, page_size) == reference(x, y, page_size)


def test_a_number_that_differs_above_32_bits_differs():
    narrow = np.array([1, -1, 3], np.int32)
    assert prefix_match(narrow, np.array([1, -1, 3 + 2**32])) == 2
    assert prefix_match(narrow, np.array([1, 2**32 - 1, 3])) == 1
    assert prefix_match(np.array([2**40]), np.array([2**41])) == 0


FORMS = (
    torch.from_numpy,
    np.asarray,
    memoryview,
    lambda x: array.array("i" if x.itemsize == 4 else "q", x.tolist()),
    lambda x: torch.nn.Parameter(torch.from_numpy(x), requires_grad=False),
)


@pytest.mark.parametrize("widths", WIDTHS, ids=str)
def test_any_two_forms_compare(widths):
    a, b = np.array([4, 5, 6, 7], widths[0]), np.array([4, 5, 6, 8, 9], widths[1])
    for first, second in product(FORMS, repeat=2):
        assert prefix_match(first(a), second(b)) == 3


def test_many_keys_are_compared_with_one_query():
    query, other = np.arange(100), np.arange(100)
    other[70] = 0
    keys = [other, torch.arange(30, dtype=torch.int32), np.zeros(0, np.int32), query]
    result = prefix_match_many(query, keys, 16)
    assert isinstance(result, torch.Tensor)
    assert (result.tolist(), result.dtype) == ([64, 16, 0, 96], torch.int64)
    assert prefix_match_many(query, []).shape == (0,)


IDS = np.arange(3)
BAD = {
    "a set": (lambda: prefix_match({1}, IDS), TypeError, "a is of type set, but must be a list of int, or a one-dim"),
    "floats": (lambda: prefix_match(IDS, np.zeros(3)), ValueError, "b holds elements of format 'd'"),
    "page 0": (lambda: prefix_match(IDS, IDS, 0), ValueError, "page_size is 0, but a page has 1 token or more"),
    "page -1": (lambda: prefix_match(IDS, IDS, -1), ValueError, "page_size is -1"),
    "page 1.5": (lambda: prefix_match(IDS, IDS, 1.5), TypeError, "page_size is of type float"),
    "one of the keys": (lambda: prefix_match_many(IDS, [IDS, 3]), TypeError, r"keys\[1\] is of type int"),
    "no keys": (lambda: prefix_match_many(IDS, 3), TypeError, "has no len"),
}


def test_bad_input_is_refused_in_one_line():
    for call, kind, words in BAD.values():
        with pytest.raises(kind, match=words) as caught:
            call()
        assert "\n" not in str(caught.value)
