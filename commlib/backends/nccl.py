"""The nccl backend: GPUs of one host. `Control` makes, splits and ends its communicator, through nccl4py."""

from __future__ import annotations

import ctypes
import importlib
import json
import logging
import os
import secrets
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.utils.dlpack

from commlib import device, env, jit, native
from commlib.backends.base import Backend, Options
from commlib.bootstrap.world import World
from commlib.device import MAX_WORLD
from commlib.errors import KINDS, CommError, CommTimeout, Unsupported
from commlib.plan import MODES, Plan, Rule
from commlib.redops import DTYPES, REDOPS

_LOG = logging.getLogger("commlib")
_UNLIMITED = (1 << 62) - 1
CLOSE_S = 10.0  # for the peers to close too
# Of a kernel: at most so many blocks, of so many threads, each thread's least share, a stream's step.
DEFAULT_SHAPE = {"blocks": 64, "threads": 256, "grain_bytes": 16, "tile_bytes": 32768}

_REMEDY = 'pip install "commlib[gpu]"'
_OLDEST_NCCL4PY = (0, 6)
_REPORT_S = 10.0  # after a rank's own deadline, for its report to reach the others
_END_S = 10.0  # for destroy and abort: a live CUDA graph or a spinning kernel may hold them for ever


# What newer NCCLs offer: since when, its symbol, and why older ones will not do.
_WINDOW = "ncclCommWindowRegister"
FEATURES = {
    "split": (21800, "ncclCommSplit", ""),
    "shrink": (22703, "ncclCommShrink", ""),
    "symmetric_windows": (22703, _WINDOW, ""),
    "peer_pointers": (22803, _WINDOW, ": older ones do not tell peers' addresses"),
    "symmetric_kernels": (23007, _WINDOW, ": older ones may read input before it is written"),
    "revoke": (22807, "ncclCommRevoke", ""),
    "grow": (22902, "ncclCommGrow", ""),
    "properties": (22902, "ncclCommQueryProperties", ""),
    "suspend": (22907, "ncclCommSuspend", ""),
}


def capabilities(version: int, has_symbol: Callable[[str], bool]) -> dict[str, str]:
    """Map each feature to "", or to the reason it is off with this NCCL and environment."""
    switches = [name for name in ("NCCL_CUMEM_ENABLE", "NCCL_WIN_ENABLE") if env.foreign(name) == "0"]
    reasons = {}
    for feature, (since, symbol, because) in FEATURES.items():
        reasons[feature] = ""
        if version < since:
            reasons[feature] = f"needs NCCL {version_text(since)}, this is {version_text(version)}{because}"
        elif not has_symbol(symbol):
            reasons[feature] = f"this NCCL {version_text(version)} was built without {symbol}"
        elif symbol == _WINDOW and switches:
            reasons[feature] = f"{switches[0]}=0 turned it off; unset it"
    return reasons


def version_text(version: int) -> str:
    """Return 22809 as 2.28.9."""
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"


class Control:
    """A communicator of NCCL from birth to death; every call that NCCL leaves without a deadline gets one here."""

    def __init__(self, communicator: Any, timeout_s: float, *, owned: bool = True) -> None:
        self._core = _core()
        self._communicator = communicator
        self._timeout_s = timeout_s
        self._owned = owned
        self._ended = False
        self.ptr = int(communicator.ptr)
        self.rank = int(communicator.rank)
        self.size = int(communicator.nranks)
        library = self._core.get_version().libnccl
        major, minor, patch = library.version.release
        self.version: int = major * 10000 + minor * 100 + patch
        self.library = str(library.path)

    @classmethod
    def create(cls, world: World, timeout_s: float) -> Control:
        """Make one of all ranks of `world`, on the device that is current; all ranks fail together."""
        offers = [json.loads(reply) for reply in world.all_gather(_offer(world.rank == 0), timeout_s)]
        _raise_first([offer["failure"] for offer in offers], timeout_s)
        unique_id, control, failure = bytes.fromhex(offers[0]["id"]), None, None
        try:
            core = _core()
            init = partial(core.Communicator.init, world.size, world.rank, core.UniqueId.from_bytes(unique_id))
            control = cls(_within(timeout_s, "ncclCommInitRank", init), timeout_s)
        except Exception as error:  # nccl4py's errors have no common base
            failure = _failure(error)
        # Ranks that failed at once wait for those that still wait for them inside NCCL.
        replies = world.all_gather(json.dumps(failure).encode(), timeout_s + _REPORT_S)
        failures = [json.loads(reply) for reply in replies]
        if control is not None and any(failures):
            control.abort()
        _raise_first(failures, timeout_s)
        assert control is not None
        return control

    @classmethod
    def adopt(cls, source: Any, timeout_s: float) -> Control:
        """Use the caller's: an address, nccl4py's object or a torch process group on NCCL; ending it stays theirs."""
        return cls(_core().Communicator(_address(source)), timeout_s, owned=False)

    def features(self) -> dict[str, str]:
        """Map each feature of NCCL to "", or to the reason it is off here."""
        exports = ctypes.CDLL(self.library)  # loaded already; this only looks names up
        return capabilities(self.version, partial(hasattr, exports))

    def split(self, color: int | None, key: int) -> Control | None:
        """Make one of the ranks with the same colour; every rank calls it, None takes no part."""
        part = _within(self._timeout_s, "ncclCommSplit", partial(self._communicator.split, color, key))
        return Control(part, self._timeout_s) if part.is_valid else None

    def shrink(self, exclude: Sequence[int]) -> Control:
        """Make one without the lost ranks, ending what is under way; only survivors call it."""
        shrink = partial(self._communicator.shrink, exclude, flag=self._core.CommShrinkFlag.ABORT)
        return Control(_within(self._timeout_s, "ncclCommShrink", shrink), self._timeout_s)

    def async_error(self) -> str:
        """Say what went wrong in an operation under way, "" while nothing did."""
        if self._ended:
            return ""
        result = int(self._communicator.get_async_error())
        if result in (0, 7):  # ncclSuccess, ncclInProgress
            return ""
        return f"{self._core.get_error_string(result)}: {self._communicator.get_last_error()}"

    def abort(self) -> bool:
        """End operations under way and free everything, without the peers; False if NCCL did not come back."""
        return self._end("ncclCommAbort", self._communicator.abort)

    def destroy(self) -> bool:
        """Free everything once all ranks are done with it; False if NCCL did not come back."""
        return self._end("ncclCommDestroy", self._communicator.destroy)

    def _end(self, what: str, call: Callable[[], Any]) -> bool:
        if self._ended or not self._owned:
            return True
        self._ended = True
        try:
            _within(_END_S, what, call)
        except CommError:
            return False
        return True


def _core() -> Any:
    """nccl4py, over the NCCL that the process has: torch's, since torch is imported first."""
    try:
        core = importlib.import_module("nccl.core")
    except ImportError as error:
        raise Unsupported(f"nccl4py cannot be used ({error}); {_REMEDY}") from None
    if tuple(int(part) for part in core.__version__.split(".")[:2]) < _OLDEST_NCCL4PY:
        raise Unsupported(f"nccl4py {core.__version__} is too old, 0.6 is needed; {_REMEDY}")
    found = core.get_version().libnccl
    if found is None or found.path is None:
        raise Unsupported("nccl4py finds no libnccl.so.2; install torch for CUDA, or use backend='shm'")
    return core


def _offer(with_id: bool) -> bytes:
    """What a rank brings to the start: the unique id if it makes it, and why it cannot take part if so."""
    try:
        core = _core()
        if env.foreign("NCCL_COMM_BLOCKING") == "0":
            raise Unsupported("NCCL_COMM_BLOCKING=0 makes every call of NCCL return early; unset it")
        unique_id = bytes(core.get_unique_id()) if with_id else b""
        return json.dumps({"id": unique_id.hex(), "failure": None}).encode()
    except Exception as error:
        return json.dumps({"id": "", "failure": _failure(error)}).encode()


def _failure(error: Exception) -> list[str]:
    return [type(error).__name__ if isinstance(error, CommError) else "CommError", str(error)]


def _raise_first(failures: list[list[str] | None], timeout_s: float) -> None:
    """Raise what the first rank reports; ranks that were only kept waiting come last."""
    late = [rank for rank, failure in enumerate(failures) if failure and failure[0] == "CommTimeout"]
    for rank, failure in enumerate(failures):
        if failure and rank not in late:
            kind = {kind.__name__: kind for kind in KINDS}[failure[0]]
            raise kind(f"rank {rank}: {failure[1]}")
    if late:
        raise CommTimeout(
            f"making the NCCL communicator hung for {timeout_s:g} s on rank(s) {', '.join(map(str, late))} "
            f"of {len(failures)}; NCCL_DEBUG=INFO shows where. Raise timeout_s= if start-up is that slow"
        )


def _within(timeout_s: float, what: str, call: Callable[[], Any]) -> Any:
    """Make a call that may never return, on a thread that is left behind then."""
    device = torch.cuda.current_device() if torch.cuda.is_available() else None
    outcome: list[tuple[Any, Exception | None]] = []

    def run() -> None:
        try:
            if device is not None:
                torch.cuda.set_device(device)  # a new thread starts on device 0
            outcome.append((call(), None))
        except Exception as error:
            outcome.append((None, error))

    thread = threading.Thread(target=run, name=f"commlib {what}", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if not outcome:
        raise CommTimeout(f"{what} did not return within {timeout_s:g} s")
    value, error = outcome[0]
    if error is not None:
        raise error if isinstance(error, CommError) else CommError(f"{what}: {error}")
    return value


def _address(source: Any) -> int:
    """The address of the communicator that `source` is or holds."""
    pointer = source.ptr if hasattr(source, "ptr") else source
    if hasattr(source, "_get_backend"):  # a torch process group
        try:
            pointer = source._get_backend(torch.device("cuda"))._comm_ptr()
        except (RuntimeError, AttributeError) as error:
            raise Unsupported(f"this process group hands out no NCCL communicator: {error}") from None
    if not isinstance(pointer, int):
        raise TypeError(
            f"an NCCL communicator is an address, an object of nccl4py or a torch process group, not {source!r}"
        )
    if pointer == 0:
        raise ValueError("the communicator does not exist yet; init_process_group(device_id=...) makes it at once")
    return pointer


class NcclBackend(Backend):
    """GPUs of one host: NCCL's communicator, and symmetric memory on which commlib's own kernels work."""

    name = "nccl"
    native = True
    agrees_splits = False  # its one algorithm sends between pairs, and a graph may hold no exchange on the host

    def __init__(self, world: World, options: Options) -> None:
        self._world_size = world.size
        self._timeout_s = options.timeout_s
        self.device = _pick_device(world, options.timeout_s)
        major, minor = torch.cuda.get_device_capability(self.device)
        self._arch = f"sm_{major}{minor}"
        given = getattr(world, "nccl_comm", None)
        self.control = Control.create(world, options.timeout_s) if given is None else given
        self.features = self.control.features()
        native.hint_nccl(self.control.library)
        self._group = native.open_nccl(
            self.control.ptr, world.rank, world.size, self.device.index, options.timeout_s, options.max_bytes
        )
        self._set_up_memory(world)
        pids = [int(pid) for pid in world.all_gather(_watchable(world).encode(), options.timeout_s)]
        self._group.start(pids, self._build)
        world.all_gather(b"", options.timeout_s)  # nobody launches before every rank watches every other

    def _set_up_memory(self, world: World) -> None:
        """Register the arena step by step; where a feature is missing on one rank, all go without."""
        reason = self.features["peer_pointers"] or self.features["symmetric_windows"]
        if world.size > MAX_WORLD:
            reason = f"kernels serve up to {MAX_WORLD} ranks"
        nonce = world.broadcast(secrets.token_bytes(6), 0, self._timeout_s).hex()
        for step in ("acquire", "register", "resolve", "verify"):
            failure = reason
            if not failure:
                try:
                    call = partial(self._group.set_up, step, int(nonce, 16))
                    _within(self._timeout_s, f"symmetric memory: {step}", call)
                except Unsupported as error:
                    failure = str(error)
                except CommError as error:
                    failure = f"!{error}"
            # A leading "!" is a fault; anything else a machine or NCCL that cannot, which is fine.
            replies = world.all_gather(failure.encode(), self._timeout_s + _REPORT_S)
            failures = [f"rank {rank}: {reply.decode()}" for rank, reply in enumerate(replies) if reply]
            faults = [text for text in failures if ": !" in text]
            if faults:
                raise CommError(faults[0].replace("!", "", 1))
            if failures:
                self.symmetric = failures[0]
                self._group.without_arena(failures[0])
                if world.rank == 0:
                    _LOG.warning("no symmetric memory, NCCL's own algorithms only: %s", failures[0])
                return
        self.symmetric = ""

    @property
    def plan_name(self) -> str:
        """The shipped plan that fits: without symmetric memory NCCL's own algorithms are all there is."""
        return "nccl_direct" if self.symmetric else "nccl"

    def _build(self, op: str, algorithm: str, dtype: str, redop: str) -> tuple[bytes, str]:
        source = device.source_of(op, algorithm)
        assert source is not None, (op, algorithm)
        instance = device.expression(algorithm, self._world_size, dtype, redop)
        kernel = jit.compile_kernel(source, instance, self._arch)
        return kernel.code, kernel.symbol

    def bind(self, name: str) -> Callable[..., Any]:
        """Return the native function; torch's current stream comes along with the tensors."""
        if name == "barrier":
            return self._barrier
        return native.keep_interpreter(self._group.bind(name))

    def _barrier(self) -> None:
        """Wait on the host too, unless a graph is being captured: then the replay waits."""
        stream = torch.cuda.current_stream(self.device)
        self._group.barrier(stream.cuda_stream, not torch.cuda.is_current_stream_capturing())

    def set_plan(self, plan: Plan) -> None:
        """Compile the plan's rules for this world into the native tables, eager and graph."""
        self._group.clear_plan()
        for mode in MODES:
            for rule in plan.rules_for(self._world_size, mode):
                self._add(rule, mode)

    def _add(self, rule: Rule, mode: str) -> None:
        ranges: list[int] = []
        for entry in rule.ranges:
            algorithm = self._algorithm(rule, entry.algorithm)
            unknown = set(entry.params) - set(DEFAULT_SHAPE)
            if unknown:
                raise ValueError(
                    f"{rule.where}: unknown params {sorted(unknown)}; nccl knows {', '.join(DEFAULT_SHAPE)}"
                )
            shape = {**DEFAULT_SHAPE, **entry.params}
            limit = _UNLIMITED if entry.max_bytes is None else entry.max_bytes
            ranges += [limit, algorithm, *(int(shape[name]) for name in DEFAULT_SHAPE)]
        dtype = -1 if rule.dtype == "*" else DTYPES.index(rule.dtype)
        redop = -1 if rule.redop == "*" else REDOPS.index(rule.redop)
        self._group.add_rule(rule.op, mode == "graph", rule.placement == "symmetric", dtype, redop, ranges)

    def _algorithm(self, rule: Rule, name: str) -> int:
        code = device.source_of(rule.op, name) is not None
        reduces = rule.op in ("all_reduce", "reduce", "reduce_scatter", "reduce_scatterv")
        number = int(self._group.algorithm_id(rule.op, name, code, reduces))
        if number < 0:
            raise ValueError(f"{rule.where}: {rule.op} has no algorithm {name!r} on nccl")
        return number

    def choice(self, op: str, num_bytes: int, dtype: str, redop: str, placement: str, mode: str = "eager") -> str:
        """Return the algorithm as the native table finds it: the plan's own words must agree with it."""
        codes = DTYPES.index(dtype), REDOPS.index(redop)
        return str(self._group.choice(op, mode == "graph", placement == "symmetric", *codes, num_bytes))

    def empty(self, num_bytes: int) -> torch.Tensor:
        """Return bytes of this rank's arena; the tensor keeps them alive, also past close()."""
        return torch.utils.dlpack.from_dlpack(self._group.empty(num_bytes))

    def check(self) -> None:
        """Raise what ended the communicator, on this GPU, in NCCL or because a peer died."""
        self._group.check()

    def abort(self, why: str) -> None:
        """Make kernels under way leave, here and on the peers."""
        self._group.abort(why)

    def close(self) -> None:
        """Let all calls finish, then free everything together with the peers; a peer that does not come costs seconds."""
        group, self._group = self._group, None
        if group is None:
            return
        together = group.close(min(self._timeout_s, CLOSE_S))
        if together:
            self.control.destroy()
        else:
            # Peers may still write here: the memory stays until the process ends.
            _LOG.info("closed without the peers; their memory stays mapped")
            self.control.abort()

    def abandon(self) -> None:
        """Leave the parent's GPU alone."""
        self._group.abandon()


def _pick_device(world: World, timeout_s: float) -> torch.device:
    """The device the caller chose, else the one of the local rank; every rank needs its own."""
    failure, index, uuid = "", -1, ""
    if not torch.cuda.is_available():
        failure = "no CUDA GPU here; use backend='shm'"
    else:
        count = torch.cuda.device_count()
        index = torch.cuda.current_device() or world.local_rank
        if index >= count:
            failure = f"needs GPU {index}, but sees {count}; start fewer ranks or make more GPUs visible"
        else:
            torch.cuda.set_device(index)
            uuid = str(torch.cuda.get_device_properties(index).uuid)
    replies = [reply.decode() for reply in world.all_gather(f"{uuid}|{failure}".encode(), timeout_s)]
    for rank, reply in enumerate(replies):
        if reply.partition("|")[2]:
            raise Unsupported(f"rank {rank}: {reply.partition('|')[2]}")
    uuids = [reply.partition("|")[0] for reply in replies]
    for rank, theirs in enumerate(uuids):
        if uuids.index(theirs) != rank:
            raise Unsupported(
                f"ranks {uuids.index(theirs)} and {rank} are on the same GPU; call torch.cuda.set_device(local_rank) "
                "before init(), or start one rank for each GPU"
            )
    return torch.device("cuda", index)


def _watchable(world: World) -> str:
    """This process, for peers to notice its end."""
    return str(os.getpid())
