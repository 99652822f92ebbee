"""Namespaces are typed, share nothing, and are forgotten with their last node."""

from itertools import combinations

import numpy as np
import pytest

from commlib.radix import RadixCache
from commlib.radix.namespaces import decoded, encoded

# Each differs from the others although some look alike, as text, as bytes or joined.
NAMES = (
    None, "", b"", (), (None,), ("",), 0, -1, 1, 255, 256, -128, 2**80, "1", b"1", (1,), ("1",), "a", b"a", ("a",),
    ("a", "b"), ("ab",), ("a", "b", None), ("a", b"b"), ("", "ab"), (1, "a"), ("a", 1), "s\x01\x00\x00\x00a", "\ud800",
)  # fmt: skip
PROMPT = np.arange(4)


def test_no_two_names_share_their_bytes():
    codes = [encoded(name) for name in NAMES]
    assert not [pair for pair in combinations(codes, 2) if pair[0] == pair[1]]
    assert [decoded(code) for code in codes] == list(NAMES)


def test_names_share_no_tokens():
    cache = RadixCache()
    for i, name in enumerate(NAMES):
        assert cache.insert(PROMPT, PROMPT + 4 * i, namespace=name).existing == 0
    for i, name in enumerate(NAMES):
        assert cache.match(PROMPT, namespace=name).slots.tolist() == (PROMPT + 4 * i).tolist()
    cache.check()


def test_an_unknown_name_matches_nothing():
    cache = RadixCache()
    cache.insert(PROMPT, PROMPT)
    assert cache.match(PROMPT, namespace="other").length == 0


def test_names_are_forgotten_with_their_nodes():
    cache = RadixCache(capacity=8)
    for i in range(5000):
        cache.insert(PROMPT, PROMPT + 4 * (i % 50), namespace=f"user {i}")
    assert len(cache._tree.listing()[1]) <= 4
    cache.check()


@pytest.mark.parametrize("name", [1.0, True, ["a"], (("a",),), ("a", 2.0)])
def test_other_types_are_refused(name):
    with pytest.raises(TypeError, match="a namespace holds a"):
        RadixCache().insert(PROMPT, PROMPT, namespace=name)
