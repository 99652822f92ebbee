"""Tensors that are not what their bytes are, or have none, and sizes that no tensor has: refused in every call."""

import copy
import pickle

import numpy as np
import pytest
import torch

import commlib
from commlib.kernels import index, metadata, prefix_match, store
from tests.on_ranks import on_ranks
from tests.test_arguments import arguments, like, make

MOST = 2**63 - 1


def resized(x, num_bytes):
    x.untyped_storage().resize_(num_bytes)
    return x


BAD = {
    "zero": (lambda: torch._efficientzerotensor(2), r"is a ZeroTensor, which has no memory; pass \w+\.clone\(\)"),
    "conjugate": (lambda: torch.tensor([1 - 2j, 3 + 4j]).conj(), r"resolve_conj\(\)"),
    "negative": (lambda: torch.tensor([1 - 2j]).conj().imag, r"resolve_neg\(\)"),
    "negative of 64 bits": (lambda: torch.tensor([1 - 2j], dtype=torch.complex128).conj().imag, r"resolve_neg\(\)"),
    "without memory": (lambda: resized(torch.ones(2), 0), "spans 8 bytes, but its storage has 0"),
    "a part without memory": (lambda: resized(torch.ones(100)[10:12], 0), "spans 8 bytes, but its storage has 0"),
    # The storage has more bytes than it spans, but not behind its start.
    "shrunk": (lambda: resized(torch.ones(1000)[500:], 2400), "spans 2000 bytes, but its storage has 400"),
}
CALLS = [
    lambda comm, x: comm.all_reduce(torch.ones_like(x), out=x),
    lambda comm, x: index(x.view(-1, 1), torch.zeros(1, dtype=torch.int64)),
    lambda comm, x: stored(x.view(-1, 1)),
]


def stored(k):
    caches = torch.zeros(2000, 1, dtype=k.dtype), torch.zeros(2000, 1, dtype=k.dtype)
    store(*caches, torch.arange(len(k)), k, torch.ones_like(caches[0][: len(k)]))


@pytest.mark.parametrize(("bad", "told"), BAD.values(), ids=BAD)
def test_a_tensor_that_is_not_its_bytes_is_refused_by_every_call_and_kernel(comm, bad, told):
    for name, taken in arguments(bad(), like(bad())).items():
        with pytest.raises(ValueError, match=told):
            make(comm, name, taken)
    for other in CALLS:
        with pytest.raises(ValueError, match=told):
            other(comm, bad())


def test_lengths_and_tokens_without_memory_are_refused():
    lengths = resized(torch.ones(3, dtype=torch.int32), 0)
    with pytest.raises(ValueError, match="seq_lens spans 12 bytes"):
        metadata(1, lengths, 4)
    with pytest.raises(ValueError, match="a spans 12 bytes"):
        prefix_match(lengths, lengths)
    with pytest.raises(ValueError, match="ids spans 12 bytes"):
        commlib.RadixCache().match(lengths)


TOO_MANY = ([MOST, MOST, 12], [MOST, 1], [1 << 62] * 4, [2**64, 1], [-1, 3])


@pytest.mark.parametrize(("world", "sizes"), [(len(sizes), sizes) for sizes in TOO_MANY])
@on_ranks()
def test_sizes_beyond_all_tensors_are_refused(comm, world, sizes):
    x = torch.ones(sum(size % 2**64 for size in sizes) % 2**64 % 1000)
    for call in (
        lambda: comm.reduce_scatterv(torch.empty(2), x, sizes),
        lambda: comm.all_gatherv(x, torch.ones(2), sizes),
        lambda: comm.all_to_all_single(x, x.clone(), sizes, sizes),
    ):
        with pytest.raises(ValueError, match=r"sizes|64 bits|splits"):
            call()
    comm.barrier()


RECORDS = np.zeros(4, dtype=[("id", "<i4"), ("flag", "u1"), ("more", "u1", 2)])


def test_a_field_of_records_is_not_contiguous():
    RECORDS["id"] = [1, 2, 3, 4]
    field = RECORDS["id"]
    cache = commlib.RadixCache()
    for call in (
        lambda: cache.insert(field, np.arange(4)),
        lambda: cache.insert(np.arange(4), field),
        lambda: cache.match(field),
        lambda: cache.match(np.arange(4), out=field),
        lambda: prefix_match(field, field),
    ):
        with pytest.raises(ValueError, match=r"the elements of \w+ are 7 bytes apart, but must be 4"):
            call()
    assert cache.match(np.arange(4)).length == 0
    assert RECORDS["id"].tolist() == [1, 2, 3, 4]


def test_a_cache_is_not_copied():
    for take in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="cannot be copied or pickled"):
            take(commlib.RadixCache())
