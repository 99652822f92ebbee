"""The torch backend: the same calls over a torch process group (gloo, MPI, NCCL), also beyond one host."""

from __future__ import annotations

import ctypes
import datetime
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from commlib.backends.base import Backend, Options
from commlib.bootstrap.neighbours import one_host
from commlib.bootstrap.tcp import own_address, served
from commlib.bootstrap.world import World
from commlib.errors import Closed, CommError, CommTimeout, PeerLost

_TIMED_OUT = ("timed out", "timeout", "Timeout")
_LOST = ("closed by peer", "Connection reset", "Broken pipe", "Connection refused", "failed to connect")


class TorchBackend(Backend):
    """A process group: the one the caller gave, else a gloo group of our own that torch knows nothing of."""

    name = "torch"
    native = False

    def __init__(self, world: World, options: Options) -> None:
        self.rank, self.size = world.rank, world.size
        self._timeout = datetime.timedelta(seconds=options.timeout_s)
        self._timeout_s = options.timeout_s
        self._ended = ""
        self._kind: type[CommError] = CommError
        self._store: Any = None
        given = getattr(world, "group", None)
        self._own = given is None
        self.group: Any = self._make_gloo(world) if given is None else given
        engine = "gloo" if given is None else dist.get_backend(given)
        cuda = "nccl" in engine and "gloo" not in engine
        self.device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")

    def _make_gloo(self, world: World) -> Any:
        """A store on rank 0 at a port the system picks, made known over the world's own exchange."""
        port, address = 0, ""
        together = one_host(world, self._timeout_s)
        if world.rank == 0:
            address = own_address(together)
            # One thread less to wait for: the server lives in this process, and nobody waits for workers.
            self._store = served((address, 0), wait_for_workers=False, timeout=self._timeout)
            port = self._store.port
        where = world.broadcast(f"{address} {port}".encode(), 0, self._timeout_s).decode().split()
        try:
            if world.rank != 0:
                self._store = TCPStore(where[0], int(where[1]), None, is_master=False, timeout=self._timeout)
            return dist.ProcessGroupGloo(self._store, world.rank, world.size, self._timeout)
        except RuntimeError as error:
            raise self._translate(error, "making the gloo group") from None

    def wait(self, work: Any, what: str) -> None:
        """Wait for a torch Work under the deadline; engine errors become ours."""
        if self._ended:
            raise self._kind(self._ended)
        try:
            done = work.wait(self._timeout) if self.device.type == "cpu" else work.wait()
        except RuntimeError as error:
            raise self._translate(error, what) from None
        if done is False:
            raise CommTimeout(f"rank {self.rank}: {what} did not finish within {self._timeout_s} s")

    def run(self, name: str, call: Callable[[], Any]) -> Any:
        """Make a call of the engine, which may fail at once, before it is waited for."""
        held = self.group  # a group's end waits for its calls with Python's lock held: it comes after the last of them
        try:
            return call()
        except CommError:
            raise
        except RuntimeError as error:  # the engine's own is of no other class
            if not (isinstance(error, dist.DistError) or any(text in str(error) for text in (*_LOST, *_TIMED_OUT))):
                raise
            raise self._translate(error, name) from None
        finally:
            del held

    def _translate(self, error: RuntimeError, what: str) -> CommError:
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        lost = isinstance(error, dist.DistNetworkError) or any(t in text for t in _LOST)
        kind = PeerLost if lost else CommError
        self._kind = kind = CommTimeout if any(t in text for t in _TIMED_OUT) else kind
        self._ended = f"rank {self.rank}: {what} failed in torch.distributed: {text}"
        return kind(self._ended)

    def options(self, options: Any, **values: Any) -> Any:
        """Set options of a call of torch's, its deadline among them, and return them."""
        for name, value in {"timeout": self._timeout, **values}.items():
            setattr(options, name, value)
        return options

    def empty(self, num_bytes: int) -> torch.Tensor:
        """Ordinary memory: this backend has no symmetric arena and no algorithm that wants one."""
        return torch.empty(num_bytes, dtype=torch.uint8, device=self.device)

    def check(self) -> None:
        """Raise what ended the group, if anything did."""
        if self._ended:
            raise self._kind(self._ended)

    def abort(self, why: str) -> None:
        """End the group on this rank; peers see the connection close."""
        self._ended = self._ended or why
        self.close()

    def close(self) -> None:
        """Drop the group if it is ours."""
        if not self._ended:
            self._ended, self._kind = "this communicator is closed; call commlib.init() for a new one", Closed
        if self._own:
            self.group = _Closed(self)
            self._store = None

    def leave(self) -> None:
        """Leave the group's end to the system: its destructor waits for calls under way, up to their deadline."""
        if self._own:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.group))
        self.close()

    def abandon(self) -> None:
        """Leave the group's threads, which a forked child does not have, alone."""
        self.leave()


class _Closed:
    """Stands in for the group after close(): every use says why it cannot work."""

    def __init__(self, backend: TorchBackend) -> None:
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        self._backend.check()
        raise Closed("this communicator is closed")
