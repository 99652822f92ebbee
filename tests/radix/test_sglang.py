"""SGLangRadixCache does what SGLang's RadixCache does, call by call; test_sglang_mixtures.py has random calls."""

from array import array
from types import SimpleNamespace

import pytest
import torch

from commlib.radix import AllBlocksCleared, BlockStored, sglang
from commlib.radix.sglang import CacheInitParams, InsertParams, MatchPrefixParams, RadixKey, SGLangRadixCache
from tests.radix.pools import Allocator, Rows, request, row_of


def made(size=64, page_size=1, **options):
    allocator = Allocator(size, page_size)
    pools = dict(req_to_token_pool=Rows(), token_to_kv_pool_allocator=allocator)
    return SGLangRadixCache(CacheInitParams(**pools, page_size=page_size, **options)), allocator


def match(cache, *tokens, **key):
    return cache.match_prefix(MatchPrefixParams(RadixKey(tokens, **key)))


def insert(cache, tokens, first=0, key=None, **options):
    """Insert tokens with slots counted from `first`, which the allocator gives away."""
    slots = torch.arange(first, first + len(tokens))
    if cache.token_to_kv_pool_allocator is not None:
        available = cache.token_to_kv_pool_allocator.available
        available[:] = [slot for slot in available if slot not in slots.tolist()]
    return cache.insert(InsertParams(key or RadixKey(tokens), slots, **options))


def evict(cache, count):
    """Return how many tokens went, and which slots the allocator got back."""
    return cache.evict(sglang.EvictParams(count)).num_tokens_evicted, cache.token_to_kv_pool_allocator.took_back()


@pytest.mark.parametrize("form", [list, tuple, lambda x: array("q", x), torch.tensor])
def test_a_match_has_the_slots_as_int64_and_the_node_that_ends_it(form):
    cache, _ = made()
    insert(cache, form([1, 2, 3]), 10)
    found = cache.match_prefix(MatchPrefixParams(RadixKey(form([1, 2, 9]))))
    assert (found.device_indices.tolist(), found.device_indices.dtype) == ([10, 11], torch.int64)
    assert found.device_prefix_len == 2
    assert found.last_device_node == found.last_host_node == found.best_match_node == match(cache, 1, 2).best_match_node
    assert found.last_device_node != match(cache, 1, 2, 3).last_device_node
    assert (found.host_hit_length, cache.path_device_indices(found.last_device_node).tolist()) == (0, [10, 11])


def test_extra_key_and_salt_are_namespaces_and_a_limit_cuts_the_key():
    cache, _ = made()
    keys = [{}, {"extra_key": "a"}, {"extra_key": ""}, {"cache_salt": "a"}, {"extra_key": "a", "cache_salt": "b"}]
    for at, key in enumerate(keys):
        assert insert(cache, [1, 2], 2 * at, RadixKey([1, 2], **key)).prefix_len == 0
    for at, key in enumerate(keys):
        assert match(cache, 1, 2, **key).device_indices.tolist() == [2 * at, 2 * at + 1]
    assert [match(cache, 1, 2, **key).device_prefix_len for key in ({"extra_key": "b"}, {"limit": 1})] == [0, 1]
    insert(cache, [7, 8, 9], 20, RadixKey([7, 8, 9], limit=1))
    assert cache.total_size() == 11


@pytest.mark.parametrize("form", [list, lambda x: array("q", x), torch.tensor])
def test_tokens_of_62_bits_are_told_apart(form):
    cache, allocator = made()
    image, other = 2**61 + 5, 2**61 + 5 + 2**32
    insert(cache, form([1, image, image, 2]))
    assert match(cache, 1, image, image, 2).device_indices.tolist() == [0, 1, 2, 3]
    assert [match(cache, *form([1, token, 2])).device_prefix_len for token in (image, other, 5)] == [2, 1, 1]
    allocator.took_back()
    req = request(cache, [1, other, 3])
    cache.cache_finished_req(req)
    assert match(cache, 1, other, 3).device_indices.tolist() == [0, 4, 5]
    cache.reset()
    assert insert(cache, form([other, image])).prefix_len == 0


def test_a_checkpoint_keeps_the_prompt_longer_than_the_output():
    cache, allocator = made(eviction_policy="Priority")
    other, req = request(cache, [1, 2, 9]), request(cache, [1, 2, 3], row=1, output=[4, 5], priority=3)
    cache.checkpoint(other, up_to=3)
    cache.unlock(other.lock)
    cache.checkpoint(req, up_to=4)
    assert (allocator.took_back(), row_of(cache, req, 5)) == ([3, 4], [0, 1, 5, 6, 7])
    assert (req.cache_protected_len, req.cache_inserted_len, cache.protected_size()) == (4, 4, 4)
    cache.checkpoint(req, up_to=5)
    cache.unlock(req.lock)
    insert(cache, [8], 20, priority=3)
    assert [evict(cache, 1)[1] for _ in range(6)] == [[2], [7], [6], [20], [5], [0, 1]]


def test_an_allocator_may_keep_what_it_gets():
    cache, allocator = made()
    first, second = request(cache, [1, 2, 3]), request(cache, [1, 2, 3], row=1)
    got, allocator.free = [], lambda slots: got.append(slots)
    cache.cache_unfinished_req(first), cache.cache_unfinished_req(second)
    assert (torch.cat(got).tolist(), row_of(cache, second, 3)) == ([3, 4, 5], [0, 1, 2])


def test_without_inserts_of_what_ended_all_of_it_is_freed_and_reset_frees_nothing():
    cache, allocator = made(disable_finished_insert=True, enable_kv_cache_events=True)
    cache.cache_finished_req(request(cache, [1, 2]))
    assert (allocator.took_back(), cache.total_size()) == ([0, 1], 0)
    cache.lock(insert(cache, [1, 2]).last_device_node)
    cache.reset()
    assert (cache.total_size(), cache.protected_size(), allocator.took_back()) == (0, 0, [])
    kinds = [type(event) for event in cache.take_events()]
    assert kinds == [AllBlocksCleared, BlockStored, AllBlocksCleared]


def test_a_cache_that_is_off_has_nothing():
    cache, allocator = made(disable=True, enable_kv_cache_events=True)
    assert insert(cache, [1, 2]).prefix_len == 0
    assert (match(cache, 1, 2).device_prefix_len, cache.total_size(), evict(cache, 3)) == (0, 0, (0, []))
    allocator.available = [*range(64)]
    req = request(cache, [1, 2])
    cache.cache_unfinished_req(req), cache.checkpoint(req, up_to=2), cache.cache_finished_req(req)
    assert (allocator.took_back(), cache.supports_prefix_sharing(), cache.take_events()) == ([0, 1], False, [])


def test_what_it_cannot_do_is_refused():
    for options in (dict(is_eagle=True), dict(eviction_policy="tlru")):
        with pytest.raises(ValueError, match=next(iter(options))[-6:]):
            made(**options)
    with pytest.raises(ValueError, match="is_bigram"):
        match(made()[0], 1, is_bigram=True)


def test_objects_of_another_package_with_the_same_names_will_do():
    pools = dict.fromkeys(("req_to_token_pool", "token_to_kv_pool_allocator"))
    switches = dict.fromkeys(("disable", "is_eagle", "enable_kv_cache_events"), False)
    cache = SGLangRadixCache(SimpleNamespace(**pools, **switches, page_size=1, eviction_policy="lru"))
    key = SimpleNamespace(token_ids=[1, 2], extra_key=None)
    assert cache.insert(SimpleNamespace(key=key, value=torch.tensor([3, 4]), priority=0)).prefix_len == 0
    assert cache.match_prefix(SimpleNamespace(key=key)).device_indices.tolist() == [3, 4]
