"""The typed face of the native library: each function and method, and where in csrc it stands.

Arguments are positional. tests/test_native.py compares every line with the library itself.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from commlib.radix.results import Insert, InsertMatch, Match

Integers: TypeAlias = Any
"""One-dimensional int32 or int64: a torch tensor on the CPU, or anything with a buffer (numpy, array, memoryview)."""

RedOp: TypeAlias = Any
"""A reduction's name, or a torch.distributed.ReduceOp."""

def connect(tensor: type[Tensor], parameter: type[torch.nn.Parameter], /) -> None:
    """csrc/binding/module.cc: connect"""

def library_path() -> str:
    """csrc/binding/nccl_pool.cc: library_path"""

def set_redops(codes: dict[Any, int], /) -> None:
    """csrc/binding/calls.cc: set_redops"""

# --- collectives ------------------------------------------------------------------------------------------------------

class Calls:
    """The collectives of one communicator; they keep its memory, and say so when it is closed."""

    def all_reduce(self, x: Tensor, redop: RedOp, out: Tensor | None, /) -> Tensor:
        """csrc/binding/calls.cc: Calls::all_reduce"""
    def reduce(self, out: Tensor, x: Tensor, dst: int, redop: RedOp, /) -> None:
        """csrc/binding/calls.cc: Calls::reduce"""
    def broadcast(self, x: Tensor, src: int, /) -> None:
        """csrc/binding/calls.cc: Calls::broadcast"""
    def all_gather(self, out: Tensor, x: Tensor, /) -> None:
        """csrc/binding/calls.cc: Calls::all_gather"""
    def all_gatherv(self, out: Tensor, x: Tensor, sizes: Sequence[int], /) -> None:
        """csrc/binding/calls.cc: Calls::all_gatherv"""
    def reduce_scatter(self, out: Tensor, x: Tensor, redop: RedOp, /) -> None:
        """csrc/binding/calls.cc: Calls::reduce_scatter"""
    def reduce_scatterv(self, out: Tensor, x: Tensor, sizes: Sequence[int], redop: RedOp, /) -> None:
        """csrc/binding/calls.cc: Calls::reduce_scatterv"""
    def all_to_all(self, out: Tensor, x: Tensor, /) -> None:
        """csrc/binding/calls.cc: Calls::all_to_all"""
    def all_to_allv(
        self, out: Tensor, x: Tensor, out_splits: Sequence[int], in_splits: Sequence[int], longest: int, /
    ) -> None:
        """csrc/binding/calls.cc: Calls::all_to_allv"""
    def gather(self, out: Tensor, x: Tensor, dst: int, /) -> None:
        """csrc/binding/calls.cc: Calls::gather"""
    def scatter(self, out: Tensor, x: Tensor, src: int, /) -> None:
        """csrc/binding/calls.cc: Calls::scatter"""
    def send(self, x: Tensor, dst: int, /) -> None:
        """csrc/binding/calls.cc: Calls::send"""
    def recv(self, x: Tensor, src: int, /) -> None:
        """csrc/binding/calls.cc: Calls::recv"""
    def barrier(self) -> None:
        """csrc/binding/calls.cc: Calls::barrier"""
    def enqueue_barrier(self) -> None:
        """csrc/binding/calls.cc: Calls::enqueue_barrier"""

def open_shm(world: int, rank: int, arena_bytes: int, nonce: int, pid: int, fd: int, /) -> ShmGroup:
    """csrc/binding/shm_group.cc: open_shm"""

class ShmGroup:
    """This rank's part of a shared segment."""

    def fd(self) -> int:
        """csrc/binding/shm_group.cc: ShmGroup::fd"""
    def start(self, timeout_s: float, isa: str, checked: bool, /) -> None:
        """csrc/binding/shm_group.cc: ShmGroup::start"""
    def learn(self, rows: str, /) -> None:
        """csrc/binding/shm_group.cc: ShmGroup::learn"""
    def set_plan(self, plan: str, /) -> None:
        """csrc/binding/shm_group.cc: ShmGroup::set_plan"""
    def choice(self, op: str, dtype: str, redop: str, num_bytes: int, symmetric: bool, /) -> str:
        """csrc/binding/shm_group.cc: ShmGroup::choice"""
    def set_inner(self, inner: bool, /) -> None:
        """csrc/binding/shm_group.cc: ShmGroup::set_inner"""
    def calls(self) -> Calls:
        """csrc/binding/shm_group.cc: ShmGroup::calls"""
    def empty(self, num_bytes: int, /) -> Tensor:
        """csrc/binding/shm_group.cc: ShmGroup::empty"""
    def check(self) -> None:
        """csrc/binding/shm_group.cc: ShmGroup::check"""
    def abort(self, why: str, /) -> None:
        """csrc/binding/shm_group.cc: ShmGroup::abort"""
    def abandon(self) -> None:
        """csrc/binding/shm_group.cc: ShmGroup::abandon"""
    def close(self) -> None:
        """csrc/binding/shm_group.cc: ShmGroup::close"""

def hint_nccl(path: str, /) -> None:
    """csrc/binding/nccl_group.cc: hint_nccl"""

def open_nccl(
    comm: int, rank: int, world: int, device: int, timeout_s: float, user_bytes: int, multiprocessors: int, /
) -> NcclGroup:
    """csrc/binding/nccl_group.cc: open_nccl"""

class NcclGroup:
    """This rank's part of a group of GPUs, on the current CUDA device."""

    def set_up(self, step: str, nonce: int, /) -> None:
        """csrc/binding/nccl_group.cc: NcclGroup::set_up"""
    def without_arena(self, why: str, /) -> None:
        """csrc/binding/nccl_group.cc: NcclGroup::without_arena"""
    def start(self, pids: Sequence[int], build: Callable[[str, str, str, str], tuple[bytes, str]], /) -> None:
        """csrc/binding/nccl_group.cc: NcclGroup::start"""
    def learn(self, rows: str, /) -> None:
        """csrc/binding/nccl_group.cc: NcclGroup::learn"""
    def set_plan(self, plan: str, /) -> None:
        """csrc/binding/nccl_group.cc: NcclGroup::set_plan"""
    def choice(self, op: str, dtype: str, redop: str, num_bytes: int, symmetric: bool, graph: bool, /) -> str:
        """csrc/binding/nccl_group.cc: NcclGroup::choice"""
    def set_inner(self, inner: bool, /) -> None:
        """csrc/binding/nccl_group.cc: NcclGroup::set_inner"""
    def calls(self) -> Calls:
        """csrc/binding/nccl_group.cc: NcclGroup::calls"""
    def empty(self, num_bytes: int, /) -> Tensor:
        """csrc/binding/nccl_group.cc: NcclGroup::empty"""
    def serve_pool(self, on: bool, /) -> None:
        """csrc/binding/nccl_group.cc: NcclGroup::serve_pool"""
    def check(self) -> None:
        """csrc/binding/nccl_group.cc: NcclGroup::check"""
    def abort(self, why: str, /) -> None:
        """csrc/binding/nccl_group.cc: NcclGroup::abort"""
    def abandon(self) -> None:
        """csrc/binding/nccl_group.cc: NcclGroup::abandon"""
    def close(self, wait_s: float, /) -> bool:
        """csrc/binding/nccl_group.cc: NcclGroup::close"""

# --- kernels ----------------------------------------------------------------------------------------------------------

def set_builder(build: Callable[[str, str, str], tuple[bytes, str]], /) -> None:
    """csrc/kernels/device_code.cc: set_builder"""

def device_kernels() -> tuple[tuple[str, str], ...]:
    """csrc/kernels/device_code.cc: device_kernels"""

def out_of_range_count(kernel: str, device_type: int, device_index: int, reset: bool, /) -> int:
    """csrc/kernels/counters.cc: out_of_range_count"""

def index(out: Tensor, weights: Tensor, ids: Tensor, start: int, length: int, out_of_range: str, /) -> bool:
    """csrc/kernels/index/check.cc: index"""

def store(
    k_cache: Tensor,
    v_cache: Tensor | None,
    slots: Tensor,
    k: Tensor,
    v: Tensor,
    hnd: bool,
    unique: bool,
    k_scale: float | Tensor | None,
    v_scale: float | Tensor | None,
    reserved: Sequence[int],
    /,
) -> None:
    """csrc/kernels/store/check.cc: kernels::store_rows"""

def metadata(
    extend_lens: Tensor | None,
    window: int,
    seq_lens: Tensor,
    topk: int,
    pad: int | None,
    expanded: Tensor | None,
    clipped: Tensor | None,
    cu_seqlens: Tensor | None,
    positions: Tensor | None,
    request_index: Tensor | None,
    total: Tensor | None,
    /,
) -> None:
    """csrc/kernels/metadata/check.cc: metadata"""

def metadata_tokens(extend_lens: Tensor, /) -> int:
    """csrc/kernels/metadata/check.cc: metadata_tokens"""

def prefix_match(a: Integers, b: Integers, page_size: int, /) -> int:
    """csrc/kernels/prefix/check.cc: match"""

def prefix_match_many(query: Integers, keys: Sequence[Integers], page_size: int, /) -> Tensor:
    """csrc/kernels/prefix/check.cc: match_many"""

def prefix_use(isa: str, /) -> None:
    """csrc/kernels/prefix/check.cc: use"""

# --- radix ------------------------------------------------------------------------------------------------------------

def radix_open(
    page_size: int,
    policy: int,
    tail: bool,
    events: bool,
    capacity: int,
    match: type[Match],
    insert: type[Insert],
    insert_match: type[InsertMatch],
    /,
) -> RadixTree:
    """csrc/binding/radix.cc: radix_open"""

def radix_restore(
    snapshot: bytes, match: type[Match], insert: type[Insert], insert_match: type[InsertMatch], /
) -> RadixTree:
    """csrc/binding/radix.cc: radix_restore"""

class RadixTree:
    """The tree of a RadixCache; calls from several threads run one at a time."""

    def match(self, ids: Integers, name: bytes | None, touch: bool, out: Integers | None, /) -> Match:
        """csrc/binding/radix.cc: RadixTree::match"""
    def match_many(self, prompts: Sequence[Integers], names: Sequence[bytes | None], /) -> Tensor:
        """csrc/binding/radix.cc: RadixTree::match_many"""
    def insert(self, ids: Integers, slots: Integers, name: bytes | None, priority: int, matches: bool, /) -> Any:
        """csrc/binding/radix.cc: RadixTree::insert"""
    def lock(self, handle: int, /) -> None:
        """csrc/binding/radix.cc: RadixTree::lock"""
    def unlock(self, handle: int, /) -> None:
        """csrc/binding/radix.cc: RadixTree::unlock"""
    def evict(self, n: int, /) -> Tensor:
        """csrc/binding/radix.cc: RadixTree::evict"""
    def reset(self, force: bool, /) -> Tensor:
        """csrc/binding/radix.cc: RadixTree::reset"""
    def evictable(self) -> int:
        """csrc/binding/radix.cc: RadixTree::evictable"""
    def locked(self) -> int:
        """csrc/binding/radix.cc: RadixTree::locked"""
    def check(self) -> None:
        """csrc/binding/radix.cc: RadixTree::check"""
    def stats(self) -> tuple[int, ...]:
        """csrc/binding/radix.cc: RadixTree::stats"""
    def listing(self) -> tuple[bytes, tuple[bytes, ...]]:
        """csrc/binding/radix.cc: RadixTree::listing"""
    def snapshot(self) -> bytes:
        """csrc/binding/radix.cc: RadixTree::snapshot"""
    def take_events(self) -> bytes:
        """csrc/binding/radix.cc: RadixTree::take_events"""
    def settings(self) -> tuple[int, int, int, int, int]:
        """csrc/binding/radix.cc: RadixTree::settings"""
