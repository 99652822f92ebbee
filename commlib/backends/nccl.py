"""The nccl backend: GPUs of one host."""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from commlib.backends.base import NativeBackend, Options
from commlib.backends.nccl_control import REPORT_S, Control, within
from commlib.bootstrap.world import World
from commlib.build.device_code import MAX_WORLD, compile_kernel, expression, row_expression
from commlib.errors import CommError, Unsupported
from commlib.native import library

_LOG = logging.getLogger("commlib")
CLOSE_S = 10.0  # for the peers to close too

_OPEN: Counter[torch.device] = Counter()  # communicators of several ranks in this process


class NcclBackend(NativeBackend["library.NcclGroup"]):
    """GPUs of one host: NCCL's communicator, and symmetric memory on which commlib's own kernels work."""

    name = "nccl"

    def __init__(self, world: World, options: Options) -> None:
        self.rank, self.size = world.rank, world.size
        self._timeout_s = options.timeout_s
        self._pool: torch.cuda.MemPool | None = None
        self._serving = False
        self._arena_bytes = options.max_bytes
        self.device = _pick_device(world, options.timeout_s)
        major, minor = torch.cuda.get_device_capability(self.device)
        self._arch = f"sm_{major}{minor}"
        source = options.nccl_comm
        self.control = (
            Control.create(world, options.timeout_s, options.max_sms)
            if source is None
            else _adopt(world, source, options.timeout_s)
        )
        try:
            self._join(world, options)
        except BaseException:
            self.control.abort()  # and the arena with it, as far as it got
            raise

    def _join(self, world: World, options: Options) -> None:
        self.features = self.control.features()
        library.hint_nccl(self.control.library)
        # A call has a block on each multiprocessor of the smallest GPU at most: symmetric memory is laid out for that.
        # Those of a second communicator in a process have fewer (csrc/nccl/footprint.h).
        count = torch.cuda.get_device_properties(self.device).multi_processor_count
        counts = world.exchange([count, _OPEN[self.device]], options.timeout_s)
        smallest, first = min(count for count, _ in counts), not any(others for _, others in counts)
        self.multiprocessors = min(smallest, options.max_sms or smallest)
        self._group: library.NcclGroup | None = library.open_nccl(
            self.control.ptr,
            world.rank,
            world.size,
            self.device.index,
            options.timeout_s,
            options.max_bytes,
            smallest,
            options.max_sms,
            first,
        )
        _OPEN[self.device] += self.size > 1
        self._set_up_memory(world)
        self.native_group.start([info.pid for info in world.infos], self._nonce, self._build)
        self.recorded_as = self._nonce
        world.all_gather(b"", options.timeout_s)  # nobody launches before every rank watches every other

    @contextmanager
    def as_first(self) -> Iterator[None]:
        before, _OPEN[self.device] = _OPEN[self.device], 0
        try:
            yield
        finally:
            _OPEN[self.device] += before

    def _set_up_memory(self, world: World) -> None:
        """Register the arena step by step; where a feature is missing on one rank, all go without."""
        reason = self.features["peer_pointers"] or self.features["symmetric_windows"]
        if world.size > MAX_WORLD:
            reason = f"kernels serve up to {MAX_WORLD} ranks"
        self._nonce = world.exchange(secrets.randbits(48), self._timeout_s)[0]
        for step in ("acquire", "register", "resolve", "verify"):
            failure = reason
            if not failure:
                try:
                    call = partial(self.native_group.set_up, step, self._nonce)
                    within(self._timeout_s, f"symmetric memory: {step}", call)
                except Unsupported as error:
                    failure = str(error)
                except CommError as error:
                    failure = f"!{error}"
            # A leading "!" is a fault; anything else a machine or NCCL that cannot, which is fine.
            failures = world.failures(failure, self._timeout_s + REPORT_S)
            faults = [text for text in failures if ": !" in text]
            if faults:
                raise CommError(faults[0].replace("!", "", 1))
            if failures:
                self.no_arena, self.has_arena = failures[0], False
                self.native_group.without_arena(failures[0])
                if world.rank == 0:
                    _LOG.warning("no symmetric memory, NCCL's own algorithms only: %s", failures[0])
                return
        self.no_arena = ""

    @property
    def plan_name(self) -> str:
        """The shipped plan that fits: without symmetric memory NCCL's own algorithms are all there is."""
        return "nccl_direct" if self.no_arena else "nccl"

    def _build(self, source: str, algorithm: str, dtype: str, form: str, epilogue: str) -> tuple[bytes, str]:
        if "=" in form:
            instance = row_expression(algorithm, dtype, form)
        else:
            instance = expression(algorithm, self.size, dtype, form)
        kernel = compile_kernel(source, instance, self._arch, epilogue, self._stamped)
        return kernel.code, kernel.symbol

    @contextmanager
    def symmetric(self) -> Iterator[None]:
        """Torch's allocations inside lie in the arena: in a pool of their own, whose memory torch reuses."""
        if self._serving:  # torch enters a pool once
            yield
            return
        if self._pool is None:
            names = "commlib_symmetric_alloc", "commlib_symmetric_free"
            self._allocator = torch.cuda.memory.CUDAPluggableAllocator(library.library_path(), *names)
            self._pool = torch.cuda.MemPool(self._allocator.allocator())
        group = self.native_group
        group.serve_pool(True)
        self._serving = True
        try:
            with torch.cuda.use_mem_pool(self._pool, self.device):
                yield
        except torch.OutOfMemoryError as error:
            raise CommError(
                f"symmetric memory is full (max_bytes={self._arena_bytes}; torch takes it in pieces of 2 MiB and "
                "more): free tensors, or raise max_bytes= (COMMLIB_MAX_BYTES)"
            ) from error
        finally:
            self._serving = False
            group.serve_pool(False)

    def close(self) -> None:
        """Let calls finish, then free everything together with the peers; one that stays away costs seconds."""
        group, self._group = self._group, None
        if group is None:
            return
        _OPEN[self.device] -= self.size > 1
        self._pool = None  # blocks that no tensor uses go back
        try:
            # What still runs is waited for; a replayed graph may hang in NCCL, whose calls there nobody watches.
            together = within(self._timeout_s + CLOSE_S, "close()", partial(group.close, min(self._timeout_s, CLOSE_S)))
        except CommError as error:
            _LOG.warning("%s", error)
            together = False
        if together:
            self.control.destroy()
        else:
            # Peers may still write here: the memory stays until the process ends.
            _LOG.info("closed without the peers; their memory stays mapped")
            self.control.abort()

    def leave(self) -> None:
        """Free nothing: the driver does, and peers watch for the end of this process."""
        if self._group is not None:
            self._group.abandon()


def _adopt(world: World, source: Any, timeout_s: float) -> Control:
    """Run on the caller's communicator, if it is one of these very ranks; ending it stays the caller's."""
    control, failure = None, ""
    try:
        control = Control.adopt(source)
        if (control.rank, control.size) != (world.rank, world.size):
            failure = f"it is rank {control.rank} of {control.size} in the NCCL communicator"
    except (CommError, TypeError, ValueError) as error:
        failure = str(error)
    for failed in world.failures(failure, timeout_s):
        raise ValueError(f"the NCCL communicator cannot be that of these {world.size} ranks: {failed}")
    assert control is not None
    return control


def _pick_device(world: World, timeout_s: float) -> torch.device:
    """The device the caller chose, else the one of the local rank; every rank needs its own."""
    failure, index, uuid = "", -1, ""
    if not torch.cuda.is_available():
        failure = "no CUDA GPU here; use backend='shm'"
    else:
        count = torch.cuda.device_count()
        index = torch.cuda.current_device() or (world.local_rank if count > 1 else 0)  # it may see its own alone
        if index >= count:
            failure = f"needs GPU {index}, but sees {count}; start fewer ranks or make more GPUs visible"
        else:
            torch.cuda.set_device(index)
            uuid = str(torch.cuda.get_device_properties(index).uuid)
    for failed in world.failures(failure, timeout_s):
        raise Unsupported(failed)
    require_distinct_gpus(world.exchange(uuid, timeout_s))
    return torch.device("cuda", index)


def require_distinct_gpus(uuids: list[str]) -> None:
    for rank, uuid in enumerate(uuids):
        if uuids.index(uuid) != rank:
            raise Unsupported(
                f"ranks {uuids.index(uuid)} and {rank} are on the same GPU; call torch.cuda.set_device(local_rank) "
                "before init(), or start one rank for each GPU"
            )
