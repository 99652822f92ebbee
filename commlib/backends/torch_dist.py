"""The torch backend: the same calls over a torch process group (gloo, MPI, NCCL), also beyond one host."""

from __future__ import annotations

import ctypes
import datetime
import json
import secrets
import time
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import TimeoutError as FutureTimeout  # before Python 3.11 not the builtin
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from commlib import env
from commlib.backends.base import Backend, Options
from commlib.bootstrap.store import ANSWER_S, source_address
from commlib.bootstrap.tcp import host_address, served
from commlib.bootstrap.world import World
from commlib.counts import ranks_text
from commlib.debug.findings import explain
from commlib.errors import CLOSED, CLOSED_TEXT, KINDS, Closed, CommError, CommTimeout, PeerLost, Unsupported, first_line
from commlib.native import library
from commlib.worker import Worker

_TIMED_OUT = ("timed out", "Timed out", "timeout", "Timeout")
_LOST = ("closed by peer", "Connection reset", "Broken pipe", "Connection refused", "failed to connect")
_TAG = 0x686F7375  # of messages that only show whether a peer is reachable: none of the program's
_MOMENT = datetime.timedelta(milliseconds=1)
GRACE_S = 0.5  # from the first rank whose call fails to the last one, where all ranks are in calls
_SYMMETRIC = frozenset({"all_reduce", "all_gather", "all_gatherv", "reduce_scatter", "reduce_scatterv", "barrier"})
"""Calls that no rank leaves before all have come."""


def as_bytes(x: torch.Tensor) -> torch.Tensor:
    """Flat bytes of a contiguous tensor, of which one element may have any stride: moving data needs no type."""
    return x.as_strided((x.numel(),), (1,)).view(torch.uint8)


class TorchBackend(Backend):
    """A process group: the one that the caller passes, else a new one that torch does not know of.

    Ranks with tensors on CPUs write into its store what ends the communicator: all raise what the first one wrote.
    """

    name = "torch"
    native = False

    def __init__(self, world: World, options: Options) -> None:
        self.rank, self.size = world.rank, world.size
        self._timeout = datetime.timedelta(seconds=options.timeout_s)
        self._timeout_s = options.timeout_s
        self._ended = ""
        self._kind: type[CommError] = CommError
        self._store: Any = getattr(world, "store", None)
        passed = getattr(world, "group", None)
        self._is_ours = passed is None
        on_gpus = self._is_ours and not options.cpus and _on_gpus(world, options.timeout_s)
        self.group: Any = self._make_group(world, on_gpus) if passed is None else passed
        engine = ("nccl" if on_gpus else "gloo") if passed is None else dist.get_backend(passed)
        cuda = "nccl" in engine and "gloo" not in engine
        self.device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
        self._shares_errors = not cuda and engine != "mpi"
        self._number, self.recorder = begin_record(world, f"torch {engine}" if cuda else "torch", options.timeout_s)

    def _make_group(self, world: World, on_gpus: bool) -> Any:
        """A store on rank 0 at a port the system picks, made known over the world's own exchange."""
        address, port = self._address(world), 0
        if world.rank == 0:
            # One thread less to wait for: the server lives in this process, and nobody waits for workers.
            self._store = served((address, 0), wait_for_workers=False, timeout=self._timeout)
            port = self._store.port
        host, port = world.exchange([address, port], self._timeout_s)[0]
        try:
            if world.rank != 0:
                self._store = TCPStore(host, port, None, is_master=False, timeout=self._timeout)
            return self._nccl() if on_gpus else self._gloo(address)
        except RuntimeError as error:
            raise self._translated(error, "making the process group") from None

    def _address(self, world: World) -> str:
        """Return the address at which the ranks of other hosts reach this one: that of packets on their way there."""
        addresses, hosts = world.exchange(world.address, self._timeout_s), world.hosts()
        elsewhere = [addresses[peer] for host in hosts if world.rank not in host.ranks for peer in host.ranks]
        known = next(filter(None, elsewhere), "")
        return source_address(known) if known else host_address(len(hosts) == 1)

    def _gloo(self, address: str) -> Any:
        gloo: Any = dist.ProcessGroupGloo
        names = env.foreign("GLOO_SOCKET_IFNAME")
        options = gloo._Options()
        options._timeout = self._timeout
        options._devices = [gloo.create_device(interface=name) for name in names.split(",") if name]
        options._devices = options._devices or [gloo.create_device(hostname=address)]
        return gloo(self._store, self.rank, self.size, options)

    def _nccl(self) -> Any:
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = self._timeout
        return dist.ProcessGroupNCCL(self._store, self.rank, self.size, options)

    def wait(self, work: Any, what: str) -> None:
        """Wait for a torch Work under the deadline; engine errors become ours."""
        self.check()
        try:
            done = work.wait(self._timeout) if self.device.type == "cpu" else work.wait()
        except RuntimeError as error:
            raise self._translated(error, what) from None
        if done is False:
            raise CommTimeout(f"rank {self.rank}: {what} did not finish within {self._timeout_s} s")

    def at_once(self, messages: Sequence[tuple[Callable[[], Any], str]]) -> None:
        """Start messages together and wait for them; NCCL runs others in order, so ranks that all send first hang."""
        if self.device.type == "cpu":
            started = [(start(), what) for start, what in messages]
        else:
            place = [self.device] if isinstance(self.group, dist.ProcessGroup) else []  # torch's engine takes none
            self.group._start_coalescing(*place)
            try:
                for start, _ in messages:
                    start()
            finally:
                work = self.group._end_coalescing(*place)
            started = [(work, " and ".join(what for _, what in messages))]
        for work, what in started:
            self.wait(work, what)

    def run(self, name: str, call: Callable[[], Any]) -> Any:
        """Make a call of the engine, which may fail at once, before it is waited for."""
        self.check()
        held = self.group  # a group's end waits for its calls with Python's lock held: it comes after the last of them
        try:
            return call()
        except (Unsupported, Closed):
            raise
        except CommError as error:
            raise self._end(error, name) from None
        except KeyboardInterrupt:
            self._end(CommError(f"rank {self.rank} was interrupted in {name}"))
            raise
        except RuntimeError as error:  # the engine's own is of no other class
            if not (isinstance(error, dist.DistError) or any(text in str(error) for text in (*_LOST, *_TIMED_OUT))):
                raise
            raise self._end(self._translated(error, name), name) from None
        finally:
            del held

    def _translated(self, error: RuntimeError, what: str) -> CommError:
        text = first_line(error)
        late = any(t in text for t in _TIMED_OUT)
        lost = isinstance(error, dist.DistNetworkError) or any(t in text for t in _LOST)
        kind = CommTimeout if late else PeerLost if lost else CommError
        return kind(f"rank {self.rank}: {what} failed in torch.distributed: {text}")

    def _end(self, error: CommError, name: str = "") -> CommError:
        """End the communicator on all ranks; return what ended it first, on any of them. `name` is that of the call."""
        if not self._ended:
            first = self._first(error, name) if self._shares_errors else self._explained(error)
            self._kind, self._ended = type(first), str(first)
            if self.recorder is not None:
                self.recorder.ended(self._kind.__name__, self._ended)
        return self._kind(self._ended)

    def _explained(self, error: CommError) -> CommError:
        kind = type(error)
        explanation = explain(str(self._number), kind.__name__)
        return kind("\n".join([str(error), *explanation.splitlines()]))

    def _first(self, error: CommError, name: str) -> CommError:
        """Write down what ends the communicator, unless another rank has before; return what stands there."""
        try:
            if isinstance(error, (PeerLost, CommTimeout)) and not self._there("ended"):
                error = self._blamed(error, name)
            mine = json.dumps([type(error).__name__, str(error)])
            kind, text = json.loads(self._ask(lambda: self._store.compare_set("ended", "", mine)))
        except PeerLost as gone:
            return self._explained(PeerLost(f"{gone}; {error}"))
        finally:
            self._hang_up()
        if self._is_ours and self.rank == 0 and self.size > 1:
            time.sleep(GRACE_S)  # the others read it from this process, which may end now
        return KINDS[kind](text)

    def _blamed(self, error: CommError, name: str) -> CommError:
        """Name the ranks to blame: the calls of all others fail, too, once connections break."""
        unreachable, explained = self._unreachable(), self._explained(error)
        late = isinstance(error, CommTimeout)
        self._ask(lambda: self._store.set(f"late/{self.rank}" if late else f"lost/{self.rank}", ""))
        self._hang_up()
        end = time.monotonic() + GRACE_S
        while time.monotonic() < end and not self._there("ended"):
            time.sleep(GRACE_S / 10)
        waited = [rank for rank in range(self.size) if self._there(f"late/{rank}")]
        absent = [rank for rank in range(self.size) if rank not in waited and not self._there(f"lost/{rank}")]
        if not waited:
            gone = [rank for rank in unreachable if rank in absent]
            return PeerLost(f"{ranks_text(gone)} died or left the communicator; {explained}") if gone else explained
        if not absent or not self._is_ours or name not in _SYMMETRIC:
            return explained
        return CommTimeout(f"{ranks_text(absent)} did not come to {name} within {self._timeout_s:g} s; {explained}")

    def _unreachable(self) -> list[int]:
        broken = []
        for peer in range(self.size):
            try:
                if peer != self.rank:
                    self.group.recv([torch.empty(1, dtype=torch.uint8)], peer, _TAG)
            except RuntimeError:
                broken.append(peer)
        return broken

    def _hang_up(self) -> None:
        """Close the connections of a new group, so that peers' waits end: gloo does where a deadline has passed."""
        for peer in range(self.size) if self._is_ours else ():
            try:
                if peer != self.rank:
                    self.group.recv([torch.empty(1, dtype=torch.uint8)], peer, _TAG).wait(_MOMENT)
            except RuntimeError as error:
                if any(text in str(error) for text in _TIMED_OUT):
                    return

    def _there(self, key: str) -> bool:
        return bool(self._ask(lambda: self._store.check([key])))

    def _ask(self, question: Callable[[], Any]) -> Any:
        try:
            return Worker("store").submit(question).result(ANSWER_S)
        except (RuntimeError, FutureTimeout) as error:
            who = "rank 0 is gone, which served" if self._is_ours else "nobody serves"
            raise PeerLost(f"{who} this communicator's store ({type(error).__name__})") from None

    def options(self, options: Any, **values: Any) -> Any:
        """Set options of a call of torch's, its deadline among them, and return them."""
        for name, value in {"timeout": self._timeout, **values}.items():
            setattr(options, name, value)
        return options

    def empty(self, num_bytes: int) -> torch.Tensor:
        """Ordinary memory: this backend has no symmetric arena and no algorithm that wants one."""
        return torch.empty(num_bytes, dtype=torch.uint8, device=self.device)

    def check(self) -> None:
        """Raise what ended the communicator; that a peer is gone shows in a call."""
        if self._ended:
            raise self._kind(self._ended)

    def abort(self, why: str) -> None:
        self._end(CommError(why))
        self.close()

    def close(self) -> None:
        """Drop a group that this backend made; its store stays where others may read there what ended it."""
        failed = bool(self._ended)
        if not failed:
            self._ended, self._kind = CLOSED_TEXT, Closed
        if self.recorder is not None:
            self.recorder.close()
        if self._is_ours:
            if self.device.type == "cuda" and self.group is not CLOSED:
                self.group.shutdown()
            self.group = CLOSED
            self._store = self._store if failed else None

    def leave(self) -> None:
        """Leave the group's end to the system: its destructor waits for calls under way, up to their deadline."""
        if self._is_ours:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.group))
        self.close()

    abandon = leave  # a forked child does not have the group's threads


def begin_record(world: World, backend: str, timeout_s: float) -> tuple[int, library.Recorder | None]:
    """Begin a record on all ranks of a world; return its number, and None where it has no room for so many ranks.

    Of the backend "torch" it is known when calls end; of "torch nccl" and such, only that they were handed over.
    """
    number: int = world.exchange(secrets.randbits(62), timeout_s)[0]
    if world.size > library.max_shm_ranks():
        return number, None
    mine = world.infos[world.rank]
    pids: list[int] = []
    for info in world.infos:
        if (info.boot, info.pid_namespace) != (mine.boot, mine.pid_namespace):  # the number means nothing here
            identity = f"{info.boot} {info.pid_namespace} {info.pid}"
            pids.append(-1 - (zlib.crc32(identity.encode()) & 0x3FFFFFFF))
        else:
            pids.append(info.pid)
    return number, library.open_recorder(backend[:11], number, world.rank, timeout_s, pids)


def _on_gpus(world: World, timeout_s: float) -> bool:
    """Whether NCCL is to be the engine: where the tensors are on GPUs, and of several hosts with one for every rank."""
    if world.device or len(world.hosts()) == 1:
        return world.device == "cuda"
    mine = torch.cuda.is_available() and world.local_rank < torch.cuda.device_count()
    if not all(world.exchange(mine, timeout_s)):
        return False
    torch.cuda.set_device(torch.cuda.current_device() or world.local_rank)
    return True
