"""NCCL's control plane through nccl4py: makes, adopts and ends communicators, each step with a deadline."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from commlib import env
from commlib.bootstrap.world import World
from commlib.errors import KINDS, CommError, CommTimeout, Unsupported
from commlib.worker import Worker

REMEDY = 'pip install "nccl4py>=0.6" "cuda-bindings>=13,<14"'
_OLDEST_NCCL4PY = (0, 6)
_MAX_CTAS = 64  # NCCL never has more
REPORT_S = 10.0  # after a rank's own deadline, for its report to reach the others
_END_S = 10.0  # for destroy and abort: a live CUDA graph or a spinning kernel may hold them for ever


# What newer NCCLs offer where they have windows: since when, and why older ones will not do.
_WINDOW = "ncclCommWindowRegister"
FEATURES = {
    "symmetric_windows": (22703, ""),
    "peer_pointers": (22803, ": older ones do not tell peers' addresses"),
    "symmetric_kernels": (23007, ": older ones may read input before it is written"),
}


def capabilities(version: int, has_symbol: Callable[[str], bool]) -> dict[str, str]:
    """Map each feature to "", or to the reason it is off with this NCCL and environment."""
    switches = [name for name in ("NCCL_CUMEM_ENABLE", "NCCL_WIN_ENABLE") if env.foreign(name) == "0"]
    reasons = {}
    for feature, (since, because) in FEATURES.items():
        reasons[feature] = ""
        if version < since:
            reasons[feature] = f"needs NCCL {version_text(since)}, this is {version_text(version)}{because}"
        elif not has_symbol(_WINDOW):
            reasons[feature] = f"this NCCL {version_text(version)} was built without {_WINDOW}"
        elif switches:
            reasons[feature] = f"{switches[0]}=0 turned it off; unset it"
    return reasons


def version_text(version: int) -> str:
    """Return 22809 as 2.28.9."""
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"


class Control:
    """A communicator of NCCL from birth to death; every call that NCCL leaves without a deadline gets one here."""

    def __init__(self, communicator: Any, *, owned: bool = True) -> None:
        self._communicator = communicator
        self._owned = owned
        self._ended = False
        self.ptr = int(communicator.ptr)
        self.rank = int(communicator.rank)
        self.size = int(communicator.nranks)
        self.version, self.library = _nccl(_core())

    @classmethod
    def create(cls, world: World, timeout_s: float, max_sms: int = 0) -> Control:
        """Make one of all ranks of `world`, on the device that is current; all ranks fail together."""
        offers = world.exchange(_offer(world.rank == 0), timeout_s)
        _raise_first([failure for _, failure in offers], timeout_s)
        unique_id, control, failure = bytes.fromhex(offers[0][0]), None, None
        try:
            core = _core()
            # One of NCCL's blocks is on a multiprocessor.
            limit = {"config": core.NCCLConfig(max_ctas=max_sms)} if 0 < max_sms <= _MAX_CTAS else {}
            init = partial(core.Communicator.init, world.size, world.rank, core.UniqueId.from_bytes(unique_id), **limit)
            control = cls(within(timeout_s, "ncclCommInitRank", init))
        except Exception as error:  # nccl4py's errors have no common base
            failure = _failure(error)
        # Ranks that failed at once wait for those that still wait for them inside NCCL.
        failures = world.exchange(failure, timeout_s + REPORT_S)
        if control is not None and any(failures):
            control.abort()
        _raise_first(failures, timeout_s)
        assert control is not None
        return control

    @classmethod
    def adopt(cls, source: Any) -> Control:
        """Use the caller's: an address, nccl4py's object or a torch process group on NCCL; ending it stays theirs."""
        return cls(_core().Communicator(_address(source)), owned=False)

    def features(self) -> dict[str, str]:
        return _features(self.version, self.library)

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
            within(_END_S, what, call)
        except CommError:
            return False
        return True


def nccl4py_here() -> tuple[str, dict[str, str]]:
    """Return nccl4py's version and the features of the NCCL that it drives; Unsupported says what is missing."""
    core = _core()
    return core.__version__, _features(*_nccl(core))


def _nccl(core: Any) -> tuple[int, str]:
    library = core.get_version().libnccl
    major, minor, patch = library.version.release
    return major * 10000 + minor * 100 + patch, str(library.path)


def _features(version: int, path: str) -> dict[str, str]:
    exports = ctypes.CDLL(path)  # loaded already; this only looks names up
    return capabilities(version, partial(hasattr, exports))


def _core() -> Any:
    """nccl4py, over the NCCL that the process has: torch's, since torch is imported first."""
    try:
        core = importlib.import_module("nccl.core")
    except ImportError as error:
        raise Unsupported(f"nccl4py cannot be used ({error}); {REMEDY}") from None
    if tuple(int(part) for part in core.__version__.split(".")[:2]) < _OLDEST_NCCL4PY:
        raise Unsupported(f"nccl4py {core.__version__} is too old, 0.6 is needed; {REMEDY}")
    libnccl = core.get_version().libnccl
    if libnccl is None or libnccl.path is None:
        raise Unsupported("nccl4py finds no libnccl.so.2; install torch for CUDA, or use backend='shm'")
    return core


def _offer(with_id: bool) -> tuple[str, list[str] | None]:
    """What a rank brings to the start: the unique id if it makes it, and why it cannot take part if so."""
    try:
        core = _core()
        if env.foreign("NCCL_COMM_BLOCKING") == "0":
            raise Unsupported("NCCL_COMM_BLOCKING=0 makes every NCCL call return early; unset it")
        unique_id = bytes(core.get_unique_id()) if with_id else b""
        return unique_id.hex(), None
    except Exception as error:
        return "", _failure(error)


def _failure(error: Exception) -> list[str]:
    return [type(error).__name__ if isinstance(error, CommError) else "CommError", str(error)]


def _raise_first(failures: list[list[str] | None], timeout_s: float) -> None:
    """Raise what the first rank reports; ranks that only waited come last."""
    late = [rank for rank, failure in enumerate(failures) if failure and failure[0] == "CommTimeout"]
    for rank, failure in enumerate(failures):
        if failure and rank not in late:
            raise KINDS[failure[0]](f"rank {rank}: {failure[1]}")
    if late:
        raise CommTimeout(
            f"making the NCCL communicator hung for {timeout_s:g} s on rank(s) {', '.join(map(str, late))} "
            f"of {len(failures)}; NCCL_DEBUG=INFO shows where. Raise the timeout (timeout_s=) if start-up is that slow"
        )


def within(timeout_s: float, what: str, call: Callable[[], Any]) -> Any:
    """Make a call that may never return, on a thread that is left behind then."""
    device = torch.cuda.current_device() if torch.cuda.is_available() else None

    def run() -> Any:
        if device is not None:
            torch.cuda.set_device(device)  # a new thread starts on device 0
        return call()

    outcome = Worker(what).submit(run)
    try:
        return outcome.result(timeout_s)
    except CommError:
        raise
    except Exception as error:
        if not outcome.done():
            raise CommTimeout(f"{what} did not return within {timeout_s:g} s") from None
        raise CommError(f"{what}: {error}") from error


def _address(source: Any) -> int:
    pointer = source.ptr if hasattr(source, "ptr") else source
    if hasattr(source, "_get_backend"):  # a torch process group
        try:
            pointer = source._get_backend(torch.device("cuda"))._comm_ptr()
        except (RuntimeError, AttributeError) as error:
            raise Unsupported(f"this process group does not give access to its NCCL communicator: {error}") from None
    if not isinstance(pointer, int):
        raise TypeError(
            f"an NCCL communicator is an address, an object of nccl4py or a torch process group, not {source!r}"
        )
    if pointer == 0:
        raise ValueError("the group's NCCL communicator does not exist yet; pass device_id= to init_process_group")
    return pointer
