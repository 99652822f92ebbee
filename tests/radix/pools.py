"""What SGLang's radix cache is given, in the plainest form: an allocator of slots, rows of slots, requests."""

from types import SimpleNamespace

import torch


class Allocator:
    """Whole pages of slots; a slot that is freed twice is an error, a page goes with its first slot."""

    def __init__(self, size, page_size=1, device="cpu"):
        self.device, self.page, self.available, self.freed = device, page_size, list(range(size)), []

    def take(self, count):
        taken, self.available = self.available[:count], self.available[count:]
        assert len(taken) == count
        return taken

    def free(self, slots):
        assert len(slots) > 0
        pages = sorted({slot - slot % self.page for slot in slots.tolist()})
        whole = [page + at for page in pages for at in range(self.page)]
        assert not set(whole) & set(self.available), "freed twice"
        self.available = sorted(self.available + whole)
        self.freed += whole

    def took_back(self):
        """Return what was freed since the last time."""
        freed, self.freed = self.freed, []
        return freed


class Rows:
    """The slots of each request's tokens."""

    def __init__(self, device="cpu"):
        self.req_to_token = torch.full((8, 64), -1, dtype=torch.int32, device=device)

    def write(self, where, slots):
        self.req_to_token[where] = slots.to(torch.int32)


def request(cache, prompt, row=0, output=(), priority=0, extra_key=None):
    """A request as a scheduler admits it: matched but for its last token, locked, its other slots allocated."""
    found = cache.match_prefix(SimpleNamespace(key=SimpleNamespace(token_ids=prompt[:-1], extra_key=extra_key)))
    cache.inc_lock_ref(found.last_device_node)
    total, page, cached = len(prompt) + len(output), cache.page_size, len(found.device_indices)
    own = cache.token_to_kv_pool_allocator.take(-(-total // page) * page - cached)
    slots = [*found.device_indices.tolist(), *own]
    cache.req_to_token_pool.write((row, slice(0, len(slots))), torch.tensor(slots))
    req = SimpleNamespace(
        req_pool_idx=row, cache_protected_len=cached, cache_inserted_len=0, last_node=found.last_device_node
    )
    req.kv, req.lock, req.slots, req.priority, req.extra_key = req, req.last_node, slots, priority, extra_key
    req.origin_input_ids, req.output_ids, req.fill_ids = list(prompt), list(output), list(prompt)
    req.full_untruncated_fill_ids = [*prompt, *output]
    req.pop_committed_kv_cache = lambda: total
    return req


def row_of(cache, req, count):
    return cache.req_to_token_pool.req_to_token[req.req_pool_idx, :count].tolist()
