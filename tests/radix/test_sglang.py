"""SGLangRadixCache does what SGLang's RadixCache does, call by call; test_sglang_mixtures.py has random calls."""

from array import array
from types import SimpleNamespace

import pytest
import torch

from commlib.radix import AllBlocksCleared, BlockRemoved, BlockStored
from commlib.radix.sglang import SGLangRadixCache
from commlib.radix.sglang_calls import CacheInitParams, EvictParams, InsertParams, MatchPrefixParams, RadixKey
from tests.radix.pools import Allocator, Rows, request, row_of


def made(size=64, page_size=1, **options):
    allocator = Allocator(size, page_size)
    return SGLangRadixCache(
        CacheInitParams(req_to_token_pool=Rows(), token_to_kv_pool_allocator=allocator, page_size=page_size, **options)
    ), allocator


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
    return cache.evict(EvictParams(count)).num_tokens_evicted, cache.token_to_kv_pool_allocator.took_back()


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


def test_prefixes_count_in_whole_pages():
    cache, _ = made(page_size=4)
    assert insert(cache, [*range(11)]).prefix_len == 0
    assert cache.total_size() == 8
    assert [match(cache, *range(count)).device_prefix_len for count in (0, 3, 4, 7, 11)] == [0, 0, 4, 4, 8]
    assert match(cache, 0, 1, 2, 3, 4, 5, 6, 99).device_indices.tolist() == [0, 1, 2, 3]
    assert insert(cache, [*range(3)], 20).prefix_len == 0


def test_a_match_of_nothing_is_the_root():
    cache, _ = made(page_size=2)
    for found in (match(cache), match(cache, 1), match(cache, 1, 2)):
        assert (found.device_indices.dtype, found.device_indices.shape) == (torch.int64, (0,))
        assert cache.is_root(found.last_device_node)
    assert not cache.is_root(insert(cache, [1, 2]).last_device_node)


def test_an_insert_returns_what_was_there_and_keeps_its_slots():
    cache, _ = made()
    assert insert(cache, [1, 2, 3], 0).prefix_len == 0
    assert insert(cache, [1, 2, 3], 10).prefix_len == 3
    assert insert(cache, [1, 2, 7, 8], 20).prefix_len == 2
    assert match(cache, 1, 2, 7, 8).device_indices.tolist() == [0, 1, 22, 23]
    assert sorted(cache.all_values_flatten().tolist()) == [0, 1, 2, 22, 23]
    result = cache.insert(InsertParams(RadixKey([5, 6]), torch.arange(30, 40)))  # a row has more than the key
    assert cache.path_device_indices(result.last_device_node).tolist() == [30, 31]


def test_without_slots_the_tokens_are_the_slots():
    cache = SGLangRadixCache.create_simulated(page_size=2)
    assert cache.insert(InsertParams(RadixKey([4, 5, 6]))).prefix_len == 0
    assert match(cache, 4, 5, 6).device_indices.tolist() == [4, 5]
    assert (cache.evict(EvictParams(1)).num_tokens_evicted, cache.total_size()) == (2, 0)


def test_extra_key_and_salt_are_namespaces():
    cache, _ = made()
    keys = [{}, {"extra_key": "a"}, {"extra_key": ""}, {"cache_salt": "a"}, {"extra_key": "a", "cache_salt": "b"}]
    for at, key in enumerate(keys):
        assert insert(cache, [1, 2], 2 * at, RadixKey([1, 2], **key)).prefix_len == 0
    assert [match(cache, 1, 2, **key).device_indices.tolist() for key in keys] == [
        [2 * at, 2 * at + 1] for at in range(5)
    ]
    assert match(cache, 1, 2, extra_key="b").device_prefix_len == 0


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


def test_a_limit_cuts_the_key():
    cache, _ = made()
    insert(cache, [1, 2, 3])
    assert match(cache, 1, 2, 3, limit=2).device_prefix_len == 2
    insert(cache, [7, 8, 9], 10, RadixKey([7, 8, 9], limit=1))
    assert cache.total_size() == 4


def test_locks_count_up_the_path_and_say_what_changed():
    cache, _ = made()
    long, short = insert(cache, [1, 2, 3, 4]).last_device_node, match(cache, 1, 2).last_device_node
    assert cache.inc_lock_ref(long).delta == -4
    assert cache.inc_lock_ref(long).delta == 0
    assert cache.inc_lock_ref(short).delta == 0
    assert (cache.evictable_size(), cache.protected_size(), cache.total_size()) == (0, 4, 4)
    assert [cache.dec_lock_ref(node).delta for node in (long, long, short)] == [0, 2, 2]
    assert (cache.evictable_size(), cache.protected_size()) == (4, 0)


def test_a_split_keeps_the_locks_of_both_parts():
    cache, _ = made()
    node = insert(cache, [1, 2, 3, 4]).last_device_node
    cache.inc_lock_ref(node)
    insert(cache, [1, 2, 9], 10)
    assert (cache.evictable_size(), cache.protected_size()) == (1, 4)
    assert evict(cache, 9) == (1, [12])
    assert cache.dec_lock_ref(node).delta == 4


def test_the_root_needs_no_lock():
    cache, _ = made()
    root = match(cache, 5).last_device_node
    assert [cache.dec_lock_ref(root).delta, cache.inc_lock_ref(root).delta] == [0, 0]
    cache.unlock(cache.lock(root)), cache.unlock(None)


def test_a_lock_that_is_not_held_is_an_error():
    cache, _ = made()
    node = insert(cache, [1, 2]).last_device_node
    with pytest.raises(ValueError, match="is not locked"):
        cache.dec_lock_ref(node)
    evict(cache, 2)
    with pytest.raises(ValueError, match="is dead"):
        cache.inc_lock_ref(node)


def test_evict_frees_least_recently_used_leaves_and_then_their_parents():
    cache, _ = made()
    insert(cache, [1, 2, 3]), insert(cache, [1, 2, 4, 5], 10), insert(cache, [7], 20)
    match(cache, 1, 2, 3)
    assert evict(cache, 1) == (2, [12, 13])
    assert evict(cache, 1) == (1, [20])
    cache.touch_prefix(RadixKey([1, 2]))
    assert evict(cache, 2) == (3, [0, 1, 2])  # the leaf in two parts, its parent after it
    assert evict(cache, 1) == (0, [])


def test_evict_frees_what_it_can():
    cache, _ = made()
    cache.inc_lock_ref(insert(cache, [1, 2]).last_device_node)
    insert(cache, [3, 4, 5], 10)
    assert evict(cache, 99) == (3, [10, 11, 12])
    assert evict(cache, 99) == evict(cache, 0) == evict(cache, -3) == (0, [])


@pytest.mark.parametrize("policy", ["LFU", "slru"])
def test_the_chunks_of_a_request_count_once(policy):
    cache, _ = made(eviction_policy=policy)
    insert(cache, [1], 0), insert(cache, [1], 0)
    for count in (1, 2, 3):
        insert(cache, [5, 6, 7][:count], 10, chunked=True)
    insert(cache, [5, 6, 7], 10)
    for count in (1, 2):
        insert(cache, [8, 9][:count], 20, inserted_len=count - 1)
    assert [evict(cache, 1)[1] for _ in range(6)] == [[12], [11], [10], [21], [20], [0]]


def test_priority_raises_the_path():
    cache, _ = made(eviction_policy="priority")
    insert(cache, [1], 0, priority=2), insert(cache, [5], 9, priority=1), insert(cache, [1, 2], 0, priority=None)
    assert [evict(cache, 1)[1] for _ in range(3)] == [[1], [9], [0]]


def test_a_request_that_ends_leaves_whole_pages_and_frees_the_rest():
    cache, allocator = made(page_size=2)
    req = request(cache, [1, 2, 3], output=[4, 5])
    assert req.slots == [*range(6)]
    cache.cache_finished_req(req)
    assert (allocator.took_back(), cache.all_values_flatten().tolist()) == ([4, 5], [0, 1, 2, 3])
    assert (cache.evictable_size(), cache.protected_size()) == (4, 0)


def test_a_request_that_ends_frees_its_duplicates():
    cache, allocator = made()
    first, second = request(cache, [1, 2, 3]), request(cache, [1, 2, 3], row=1)
    cache.cache_finished_req(first), cache.cache_finished_req(second)
    assert (allocator.took_back(), match(cache, 1, 2, 3).device_indices.tolist()) == ([3, 4, 5], [0, 1, 2])
    third = request(cache, [1, 2, 3, 4])  # reads what is there: only its own slot may go
    cache.cache_finished_req(third, is_insert=False)
    assert (allocator.took_back(), cache.total_size(), cache.protected_size()) == ([3], 3, 0)


def test_what_was_computed_may_be_less_than_the_tokens():
    cache, allocator = made()
    req = request(cache, [1, 2, 3], output=[4])
    cache.cache_finished_req(req, kv_len_to_handle=3)
    assert (cache.all_values_flatten().tolist(), allocator.took_back()) == ([0, 1, 2], [])


def test_a_request_that_goes_on_reads_the_slots_of_the_tree():
    cache, allocator = made(page_size=2)
    req, other = request(cache, [1, 2, 3, 4, 5]), request(cache, [1, 2, 3, 4], row=1)
    cache.cache_finished_req(other)
    assert req.cache_protected_len == 0
    req.fill_ids = [1, 2, 3]
    cache.cache_unfinished_req(req, chunked=True)
    assert (allocator.took_back(), row_of(cache, req, 6)) == ([0, 1], [6, 7, 2, 3, 4, 5])
    assert (req.cache_protected_len, req.prefix_indices.tolist()) == (2, [6, 7, 2])
    assert (cache.evictable_size(), cache.protected_size()) == (2, 2)
    req.fill_ids = [1, 2, 3, 4, 5]
    cache.cache_unfinished_req(req)
    assert (allocator.took_back(), row_of(cache, req, 6)) == ([2, 3], [6, 7, 8, 9, 4, 5])
    assert (cache.evictable_size(), cache.protected_size()) == (0, 4)
    assert req.last_node == match(cache, 1, 2, 3, 4).last_device_node
    cache.cache_finished_req(req)
    assert (allocator.took_back(), cache.evictable_size()) == ([4, 5], 4)


def test_a_checkpoint_keeps_the_prompt_longer_than_the_output():
    cache, allocator = made(eviction_policy="priority")
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


def test_without_inserts_of_what_ended_all_of_it_is_freed():
    cache, allocator = made(disable_finished_insert=True)
    cache.cache_finished_req(request(cache, [1, 2]))
    assert (allocator.took_back(), cache.total_size()) == ([0, 1], 0)


def test_a_cache_that_is_off_has_nothing():
    cache, allocator = made(disable=True, enable_kv_cache_events=True)
    assert insert(cache, [1, 2]).prefix_len == 0
    assert (match(cache, 1, 2).device_prefix_len, cache.total_size(), evict(cache, 3)) == (0, 0, (0, []))
    allocator.available = [*range(64)]
    req = request(cache, [1, 2])
    cache.cache_unfinished_req(req), cache.checkpoint(req, up_to=2), cache.cache_finished_req(req)
    assert (allocator.took_back(), cache.supports_prefix_sharing(), cache.take_events()) == ([0, 1], False, [])


def test_reset_forgets_all_and_frees_nothing():
    cache, allocator = made()
    cache.lock(insert(cache, [1, 2]).last_device_node)
    cache.reset()
    assert (cache.total_size(), cache.protected_size(), allocator.took_back()) == (0, 0, [])
    assert cache.is_root(match(cache, 1).last_device_node)


def test_events_tell_what_came_and_went():
    cache, _ = made(enable_kv_cache_events=True)
    insert(cache, [1, 2]), evict(cache, 2)
    kinds = [type(event) for event in cache.take_events()]
    assert kinds == [AllBlocksCleared, BlockStored, BlockRemoved]
    assert cache.take_events() == made()[0].take_events() == []


def test_pretty_print_shows_each_node(capsys):
    cache, _ = made()
    insert(cache, [1, 2, 3]), insert(cache, [1, 2, 4], 10)
    cache.pretty_print()
    *nodes, total = capsys.readouterr().out.splitlines()
    assert (len(nodes), total) == (4, "#tokens: 4")


def test_what_it_cannot_do_is_refused():
    for options, fault in (
        (dict(is_eagle=True), "is_eagle is set, but pairs of tokens are no keys here"),
        (dict(eviction_policy="tlru"), "policy is 'tlru', but must be one of lru"),
    ):
        with pytest.raises(ValueError, match=fault):
            made(**options)
    with pytest.raises(ValueError, match=r"is of pairs of tokens \(is_bigram\)"):
        match(made()[0], 1, is_bigram=True)


def test_objects_of_another_package_with_the_same_names_will_do():
    cache = SGLangRadixCache(
        SimpleNamespace(
            disable=False,
            req_to_token_pool=None,
            token_to_kv_pool_allocator=None,
            page_size=1,
            is_eagle=False,
            eviction_policy="lru",
            enable_kv_cache_events=False,
        )
    )
    key = SimpleNamespace(token_ids=[1, 2], extra_key=None)
    assert cache.insert(SimpleNamespace(key=key, value=torch.tensor([3, 4]), priority=0)).prefix_len == 0
    assert cache.match_prefix(SimpleNamespace(key=key)).device_indices.tolist() == [3, 4]
