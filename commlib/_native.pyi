"""The typed face of the native library: each function and method, and where in csrc it stands.

Arguments are positional. tests/test_native.py compares every line with the library itself.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from commlib.radix.cache import Insert, InsertMatch, Match

Integers: TypeAlias = Any
"""One-dimensional int32 or int64: a torch tensor on the CPU, or anything with a buffer (numpy, array, memoryview)."""

RedOp: TypeAlias = Any
"""A reduction's name, or a torch.distributed.ReduceOp."""

def connect(tensor: type[Tensor], parameter: type[torch.nn.Parameter], /) -> None:
    """csrc/binding/module.cc: connect"""

def add_ffi_algorithm(backend: str, op: str, name: str, function: int, /) -> None:
    """csrc/binding/ffi.cc: add_ffi_algorithm"""

def library_path() -> str:
    """csrc/binding/nccl_pool.cc: library_path"""

def set_redops(codes: dict[Any, int], torch_type: type, /) -> None:
    """csrc/binding/calls.cc: set_redops"""

def phases() -> str:
    """csrc/binding/calls.cc: phases"""

def guard_answers() -> None:
    """csrc/binding/record.cc: guard_answers"""

def note_collection(phase: str, info: object, /) -> None:
    """csrc/binding/record.cc: note_collection"""

def set_recorded(
    caller: Callable[[], tuple[bytes, str]], explainer: Callable[[str, str], tuple[bytes, str]], /
) -> None:
    """csrc/binding/record.cc: set_recorded"""

# --- collectives ------------------------------------------------------------------------------------------------------

class Calls:
    """The collectives of one communicator; they keep its memory, and say so when it is closed."""

    def all_reduce(self, x: Tensor, op: RedOp, out: Tensor | None, max_sms: int = 0, /) -> Tensor:
        """csrc/collectives/all_reduce/entry.cc: all_reduce"""
    def all_reduce_rms_norm(
        self,
        x: Tensor,
        residual: Tensor | None,
        weight: Tensor,
        bias: Tensor | None,
        scale: Tensor | None,
        out: Tensor,
        residual_out: Tensor,
        scale_out: Tensor | None,
        eps: float,
        weight_bias: float,
        center: bool,
        quant: str | None,
        max_sms: int = 0,
        /,
    ) -> None:
        """csrc/collectives/all_reduce_rms_norm/entry.cc: all_reduce_rms_norm"""
    def all_reduce_epilogue(
        self,
        epilogue: Epilogue,
        x: Tensor,
        tensors: Sequence[Tensor | None],
        numbers: Sequence[float],
        sums: Tensor | None,
        max_sms: int = 0,
        /,
    ) -> None:
        """csrc/collectives/all_reduce_epilogue/entry.cc: all_reduce_epilogue"""
    def reduce(self, out: Tensor | None, x: Tensor, dst: int, op: RedOp, max_sms: int = 0, /) -> None:
        """csrc/collectives/reduce/entry.cc: reduce"""
    def broadcast(self, x: Tensor, src: int, max_sms: int = 0, /) -> None:
        """csrc/collectives/broadcast/entry.cc: broadcast"""
    def all_gather(self, out: Tensor, x: Tensor, max_sms: int = 0, /) -> None:
        """csrc/collectives/all_gather/entry.cc: all_gather"""
    def all_gatherv(self, out: Tensor, x: Tensor, sizes: Sequence[int], max_sms: int = 0, /) -> None:
        """csrc/collectives/all_gather/entry.cc: all_gatherv"""
    def reduce_scatter(self, out: Tensor, x: Tensor, op: RedOp, max_sms: int = 0, /) -> None:
        """csrc/collectives/reduce_scatter/entry.cc: reduce_scatter"""
    def reduce_scatterv(self, out: Tensor, x: Tensor, sizes: Sequence[int], op: RedOp, max_sms: int = 0, /) -> None:
        """csrc/collectives/reduce_scatter/entry.cc: reduce_scatterv"""
    def all_to_all(self, out: Tensor, x: Tensor, max_sms: int = 0, /) -> None:
        """csrc/collectives/all_to_all/entry.cc: all_to_all"""
    def all_to_others(self, out: Tensor, x: Tensor, max_sms: int = 0, /) -> None:
        """csrc/collectives/all_to_all/entry.cc: all_to_others"""
    def all_to_allv(
        self,
        out: Tensor,
        x: Tensor,
        out_splits: Sequence[int] | None,
        in_splits: Sequence[int] | None,
        max_sms: int = 0,
        /,
    ) -> None:
        """csrc/collectives/all_to_all/entry.cc: all_to_allv"""
    def gather(self, out: Tensor | None, x: Tensor, dst: int, max_sms: int = 0, /) -> None:
        """csrc/collectives/gather/entry.cc: gather"""
    def scatter(self, out: Tensor | None, x: Tensor | None, src: int, max_sms: int = 0, /) -> None:
        """csrc/collectives/scatter/entry.cc: scatter"""
    def send(self, x: Tensor, dst: int, /) -> None:
        """csrc/collectives/send_recv/entry.cc: send"""
    def recv(self, x: Tensor, src: int, /) -> None:
        """csrc/collectives/send_recv/entry.cc: recv"""
    def send_recv(self, x: Tensor, dst: int, out: Tensor, src: int, /) -> None:
        """csrc/collectives/send_recv/entry.cc: send_recv"""
    def barrier(self) -> None:
        """csrc/collectives/barrier/entry.cc: barrier"""
    def enqueue_barrier(self) -> None:
        """csrc/collectives/barrier/entry.cc: enqueue_barrier"""
    def keep_versions(self) -> None:
        """csrc/binding/calls.cc: keep_versions"""
    def handle(self) -> int:
        """csrc/binding/ffi.cc: handle"""

def open_checks(rank: int, world: int, gpu: int, record: Recorder | None, reducing: str, rooted: str, /) -> Calls:
    """csrc/binding/checks.cc: open_checks"""

class Recorder:
    """The record of a communicator whose calls Python runs; csrc/binding/recorder.cc has each method by its name."""

    def enter(self, op: str, dtype: str, count: int, redop: int, root: int, /) -> None: ...
    def leave(self) -> None: ...
    def ended(self, kind: str, message: str, /) -> None: ...
    def close(self) -> None: ...

def open_recorder(backend: str, id: int, rank: int, timeout_s: float, pids: Sequence[int], /) -> Recorder:
    """csrc/binding/recorder.cc: open_recorder"""

class Epilogue:
    """What is declared of an epilogue; csrc/collectives/all_reduce_epilogue/entry.cc has it."""

def open_epilogue(
    name: str,
    tensors: str,
    kinds: Sequence[int],
    dtypes: Sequence[int],
    inputs: int,
    numbers: str,
    digest: int,
    symbol: str,
    source: str,
    /,
) -> Epilogue:
    """csrc/collectives/all_reduce_epilogue/entry.cc: open_epilogue"""

def check_tensor(tensor: object, argument: str, function: str, /) -> None:
    """csrc/binding/checks.cc: check_tensor"""

def open_plan(rows: str, has_arena: bool, /) -> PlanTable:
    """csrc/binding/plan_table.cc: open_plan"""

class PlanTable:
    """The table of a plan, without a communicator; csrc/binding/plan_table.cc has each method by its name."""

    def set(self, plan: str, max_sms: int, /) -> None: ...
    def choose(self, op: str, dtype: str, redop: str, num_bytes: int, symmetric: bool, graph: bool, /) -> str: ...
    def explain(
        self,
        op: str,
        dtype: str,
        redop: str,
        num_bytes: int,
        symmetric: bool,
        graph: bool,
        max_sms: int,
        multiprocessors: int,
        /,
    ) -> str: ...

def open_shm(world: int, rank: int, arena_bytes: int, nonce: int, pid: int, fd: int, /) -> ShmGroup:
    """csrc/binding/shm_group.cc: open_shm"""

def max_shm_ranks() -> int:
    """csrc/binding/shm_group.cc: max_shm_ranks"""

def shm_section_bytes(world: int, /) -> int:
    """csrc/binding/shm_group.cc: shm_section_bytes"""

class ShmGroup:
    """This rank's part of a shared segment; csrc/binding/shm_group.cc has each method by its name."""

    def fd(self) -> int: ...
    def start(self, timeout_s: float, isa: str, checked: bool, /) -> None: ...
    def learn(self, rows: str, /) -> None: ...
    def set_plan(self, plan: str, /) -> None: ...
    def set_inner(self, inner: bool, /) -> None: ...
    def calls(self) -> Calls: ...
    def empty(self, num_bytes: int, /) -> Tensor: ...
    def holds(self, x: Tensor, /) -> bool: ...
    def stamp(self, room: int, /) -> Tensor | None: ...
    def has_message(self, src: int, /) -> bool: ...
    def check(self) -> None: ...
    def abort(self, why: str, /) -> None: ...
    def abandon(self) -> None: ...
    def close(self) -> None: ...

def hint_nccl(path: str, /) -> None:
    """csrc/binding/nccl_group.cc: hint_nccl"""

def open_nccl(
    comm: int,
    rank: int,
    world: int,
    device: int,
    timeout_s: float,
    user_bytes: int,
    multiprocessors: int,
    max_sms: int,
    first: bool,
    /,
) -> NcclGroup:
    """csrc/binding/nccl_group.cc: open_nccl"""

class NcclGroup:
    """This rank's part of a group of GPUs, on the current CUDA device; csrc/binding/nccl_group.cc has each method."""

    def set_up(self, step: str, nonce: int, /) -> None: ...
    def without_arena(self, why: str, /) -> None: ...
    def start(
        self, pids: Sequence[int], id: int, build: Callable[[str, str, str, str, str], tuple[bytes, str]], /
    ) -> None: ...
    def learn(self, rows: str, /) -> None: ...
    def set_plan(self, plan: str, /) -> None: ...
    def set_inner(self, inner: bool, /) -> None: ...
    def calls(self) -> Calls: ...
    def empty(self, num_bytes: int, /) -> Tensor: ...
    def holds(self, x: Tensor, /) -> bool: ...
    def serve_pool(self, on: bool, /) -> None: ...
    def stamp(self, room: int, /) -> Tensor | None: ...
    def marks(self) -> Tensor | None: ...
    def check(self) -> None: ...
    def abort(self, why: str, /) -> None: ...
    def abandon(self) -> None: ...
    def close(self, wait_s: float, /) -> bool: ...

# --- kernels ----------------------------------------------------------------------------------------------------------

def set_builder(build: Callable[[str, str, str], tuple[bytes, str]], /) -> None:
    """csrc/kernels/device_code.cc: set_builder"""

def device_kernels() -> tuple[tuple[str, str], ...]:
    """csrc/kernels/device_code.cc: device_kernels"""

def out_of_range_count(kernel: str, device_type: int, device_index: int, reset: bool, /) -> int:
    """csrc/kernels/counters.cc: out_of_range_count"""

def index(out: Tensor, weights: Tensor, ids: Tensor, start: int, length: int, out_of_range: str, /) -> bool:
    """csrc/kernels/index/check.cc: index"""

def check_decode_attention(
    out: Tensor,
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    tables: Tensor,
    lengths: Tensor,
    starts: Tensor | None,
    request_index: Tensor | None,
    k_scale: float | Tensor | None,
    v_scale: float | Tensor | None,
    split_tokens: int,
    /,
) -> None:
    """csrc/kernels/attention/check.cc: kernels::check_decode_attention"""

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
    skip: Sequence[int],
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
    """The tree of a RadixCache; calls from several threads run one at a time; csrc/binding/radix.cc has each method."""

    def match(self, ids: Integers, name: bytes | None, touch: bool, out: Integers | None, /) -> Match: ...
    def match_many(self, prompts: Sequence[Integers], names: Sequence[bytes | None], /) -> Tensor: ...
    def insert(
        self, ids: Integers, slots: Integers, name: bytes | None, priority: int, counted: int, /
    ) -> Insert | tuple[Insert, Tensor]: ...
    def insert_and_match(
        self, ids: Integers, slots: Integers, name: bytes | None, priority: int, counted: int, /
    ) -> InsertMatch | tuple[InsertMatch, Tensor]: ...
    def lock(self, handle: int, /) -> None: ...
    def unlock(self, handle: int, /) -> None: ...
    def slots(self, handle: int | None, /) -> Tensor: ...
    def evict(self, n: int, at_most: bool, /) -> Tensor: ...
    def reset(self, force: bool, /) -> Tensor: ...
    def widen(self, wide: bool, /) -> None: ...
    def evictable(self) -> int: ...
    def locked(self) -> int: ...
    def check(self) -> None: ...
    def stats(self) -> tuple[int, ...]: ...
    def listing(self) -> tuple[bytes, tuple[bytes, ...]]: ...
    def snapshot(self) -> bytes: ...
    def take_events(self) -> bytes: ...
    def settings(self) -> tuple[int, int, int, int, int]: ...
