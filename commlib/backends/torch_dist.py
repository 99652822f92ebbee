"""The torch backend: the same calls over a torch process group (gloo, MPI, NCCL), also beyond one host."""

from __future__ import annotations

import ctypes
import datetime
import json
import logging
import re
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import TimeoutError as FutureTimeout  # before Python 3.11 not the builtin
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from commlib import debug, env
from commlib.backends.base import Backend, Options
from commlib.backends.hosts import Hosts
from commlib.backends.recorded import Recorded
from commlib.bootstrap.address import source_address
from commlib.bootstrap.neighbours import hosts_of
from commlib.bootstrap.store import ANSWER_S
from commlib.bootstrap.tcp import own_address, served
from commlib.bootstrap.world import World, named
from commlib.errors import KINDS, Closed, CommError, CommTimeout, PeerLost, Unsupported
from commlib.lane import Lane
from commlib.native import library

_TIMED_OUT = ("timed out", "Timed out", "timeout", "Timeout")
_LOST = ("closed by peer", "Connection reset", "Broken pipe", "Connection refused", "failed to connect")
_TAG = 0x686F7374  # of messages between hosts: none of the program's own
GRACE_S = 0.5  # from the first rank that gives up waiting to the last one that began to wait at the same time
_MOMENT = datetime.timedelta(milliseconds=1)
_LOG = logging.getLogger("commlib")

Messages = Iterable[tuple[int, torch.Tensor]]
"""Peers, and what goes to them or comes from them."""


def as_bytes(x: torch.Tensor) -> torch.Tensor:
    """Flat bytes of a contiguous tensor, of which one element may have any stride: moving data needs no type."""
    return x.as_strided((x.numel(),), (1,)).view(torch.uint8)


class TorchBackend(Backend):
    """A process group: the one the caller gave, else one of our own that torch knows nothing of.

    Where its ranks are on several hosts, `hosts` has the shared memory of those on this one, and `exchange` goes
    between hosts. What ends it is told to all ranks: the first to fail writes down why.
    """

    name = "torch"
    native = False

    def __init__(self, world: World, options: Options) -> None:
        self.rank, self.size = world.rank, world.size
        self._timeout = datetime.timedelta(seconds=options.timeout_s)
        self._timeout_s = options.timeout_s
        self._ended = ""
        self._kind: type[CommError] = CommError
        self._store: Any = None
        self._words: Any = None  # the store where what ends the communicator is written down
        given = getattr(world, "group", None)
        hosts = hosts_of(world, options.timeout_s)
        spread = len(hosts) > 1 or world.parts
        self._own = given is None
        on_gpus = self._own and not options.cpus and _on_gpus(world, len(hosts) > 1, options.timeout_s)
        self.group: Any = self._make_group(world, hosts, on_gpus) if given is None else given
        engine = ("nccl" if on_gpus else "gloo") if given is None else dist.get_backend(given)
        cuda = "nccl" in engine and "gloo" not in engine
        self.device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
        self._recorded = Recorded(world, f"torch {engine}" if cuda else "torch", options.timeout_s)
        self.recorder = self._recorded.recorder
        if cuda:
            self.no_hosts = "on GPUs NCCL's own group serves all calls, inside hosts and between them"
        elif spread:
            self._words = self._store if given is None else world.store  # type: ignore[attr-defined]  # its group's
            self._open_hosts(world, hosts, options)

    def _make_group(self, world: World, hosts: Sequence[Sequence[int]], on_gpus: bool) -> Any:
        """A store on rank 0 at a port the system picks, made known over the world's own exchange."""
        address, port = self._own_address(world, hosts), 0
        if world.rank == 0:
            # One thread less to wait for: the server lives in this process, and nobody waits for workers.
            self._store = served((address, 0), wait_for_workers=False, timeout=self._timeout)
            port = self._store.port
        where = world.broadcast(f"{address} {port}".encode(), 0, self._timeout_s).decode().split()
        try:
            if world.rank != 0:
                self._store = TCPStore(where[0], int(where[1]), None, is_master=False, timeout=self._timeout)
            return self._nccl() if on_gpus else self._gloo(address)
        except RuntimeError as error:
            raise self._translated(error, "making the process group") from None

    def _own_address(self, world: World, hosts: Sequence[Sequence[int]]) -> str:
        """Return the address at which the ranks of other hosts reach this one: that of packets on their way there."""
        told = [said.decode() for said in world.all_gather(world.address.encode(), self._timeout_s)]
        others = [told[peer] for members in hosts if world.rank not in members for peer in members if told[peer]]
        return source_address(others[0]) if others else own_address(len(hosts) == 1)

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

    def _open_hosts(self, world: World, hosts: Sequence[Sequence[int]], options: Options) -> None:
        """Make the shared memory inside the hosts; where a rank cannot, all go without."""
        most, found = library.most_shm_ranks(), max(map(len, hosts))
        if found > most:
            self.no_hosts = f"a host has {found} ranks, and shared memory serves up to {most}"
            return
        try:
            self.hosts = Hosts(world, hosts, options)
            self.no_hosts = "every host has one rank, so no memory is shared" if found == 1 < len(hosts) else ""
        except CommError as error:
            if type(error) is not CommError:  # a rank is gone
                raise
            self.no_hosts = f"no shared memory inside the hosts: {error}"
            if world.rank == 0:
                _LOG.warning("%s", self.no_hosts)

    def wait(self, work: Any, what: str, peer: int | None = None) -> None:
        """Wait for a torch Work, of messages with a peer, under the deadline; engine errors become ours."""
        self._raise_if_ended()
        try:
            done = work.wait(self._timeout) if self.device.type == "cpu" else work.wait()
        except RuntimeError as error:
            raise self._translated(error, what, peer) from None
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

    def begin(self, what: str, sends: Messages, recvs: Messages) -> Callable[[], None]:
        """Start messages between hosts, and return what waits for them; the tensors are contiguous."""
        self._raise_if_ended()
        started = []
        for start, messages in ((self.group.recv, recvs), (self.group.send, sends)):
            for peer, x in messages:
                if x.numel() == 0:
                    continue
                try:
                    started.append((start([as_bytes(x)], peer, _TAG), peer))
                except RuntimeError as error:
                    raise self._translated(error, what, peer) from None

        def finish() -> None:
            for work, peer in started:
                self.wait(work, what, peer)

        return finish

    def exchange(self, what: str, sends: Messages, recvs: Messages) -> None:
        """Send and receive messages between hosts, all at once."""
        self.begin(what, sends, recvs)()

    def run(self, name: str, call: Callable[[], Any]) -> Any:
        """Make a call of the engine, which may fail at once, before it is waited for."""
        held = self.group  # a group's end waits for its calls with Python's lock held: it comes after the last of them
        try:
            return call()
        except (Unsupported, Closed):
            raise
        except CommError as error:
            raise self._end(error) from None
        except KeyboardInterrupt:
            self._end(CommError(f"rank {self.rank} was interrupted in {name}"))
            raise
        except RuntimeError as error:  # the engine's own is of no other class
            if not (isinstance(error, dist.DistError) or any(text in str(error) for text in (*_LOST, *_TIMED_OUT))):
                raise
            raise self._end(self._translated(error, name)) from None
        finally:
            del held

    def _translated(self, error: RuntimeError, what: str, peer: int | None = None) -> CommError:
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        late = any(t in text for t in _TIMED_OUT)
        lost = isinstance(error, dist.DistNetworkError) or any(t in text for t in _LOST)
        if peer is not None and late:
            waited = f"within {self._timeout_s:g} s: rank {self.rank} gave up waiting"
            return CommTimeout(f"rank {peer} did not come to {what} {waited}; raise timeout_s= if it is only late")
        if lost and (gone := self._unreachable() if peer is None else [peer]):
            return PeerLost(f"{named(gone)} died or left the communicator; rank {self.rank} was in {what}")
        kind = CommTimeout if late else PeerLost if lost else CommError
        return kind(f"rank {self.rank}: {what} failed in torch.distributed: {text}")

    def _end(self, error: CommError) -> CommError:
        """End the communicator on all ranks; return what went wrong first, on any of them."""
        if self._ended:
            return self._kind(self._ended)
        if self.hosts is not None:
            error = self._first(error)
        said = debug.explain(str(self._recorded.id), type(error).__name__)[1]
        self._kind, self._ended = type(error), "\n".join([str(error), *said.splitlines()])
        error = self._kind(self._ended)
        if self.recorder is not None:
            self.recorder.ended(self._kind.__name__, self._ended)
        if self.hosts is not None:
            self.hosts.inside.abort(self._ended)
            self._hang_up()
        return error

    def _first(self, error: CommError) -> CommError:
        """Write down what went wrong, unless a rank has before; return what stands there."""
        mine = json.dumps([type(error).__name__, str(error)])
        try:
            if isinstance(error, CommTimeout) and self._wait_too(str(error)):
                time.sleep(GRACE_S)  # their errors name whom they wait for: those go first
            kind, text = json.loads(_answer(lambda: self._words.compare_set("ended", "", mine)))
        except (RuntimeError, FutureTimeout):
            gone = "rank 0 is gone, which served" if self._own else "nobody serves"
            return PeerLost(str(error) if "rank 0 " in str(error) else f"{gone} this communicator's store: {error}")
        return {kind.__name__: kind for kind in KINDS}[kind](text)

    def _wait_too(self, error: str) -> bool:
        """Whether the ranks that an error names as late have themselves given up waiting for others."""
        _answer(lambda: self._words.set(f"waits/{self.rank}", ""))
        time.sleep(GRACE_S)
        late = re.findall(r"\d+", re.split(" did not come", error)[0])
        return bool(late) and bool(_answer(lambda: self._words.check([f"waits/{rank}" for rank in late])))

    def _unreachable(self) -> list[int]:
        """Return the ranks whose connections have broken."""
        gone = []
        for peer in range(self.size) if self.hosts is not None else ():
            try:
                if peer != self.rank:
                    self.group.recv([torch.empty(1, dtype=torch.uint8)], peer, _TAG + 1)
            except RuntimeError:
                gone.append(peer)
        return gone

    def _hang_up(self) -> None:
        """Close the connections of our own group, so that peers' waits end: gloo does where a deadline has passed."""
        for peer in range(self.size) if self._own else ():
            try:
                if peer != self.rank:
                    self.group.recv([torch.empty(1, dtype=torch.uint8)], peer, _TAG + 1).wait(_MOMENT)
            except RuntimeError as error:
                if any(text in str(error) for text in _TIMED_OUT):
                    return

    def _raise_if_ended(self) -> None:
        if self._ended:
            raise self._kind(self._ended)

    def options(self, options: Any, **values: Any) -> Any:
        """Set options of a call of torch's, its deadline among them, and return them."""
        for name, value in {"timeout": self._timeout, **values}.items():
            setattr(options, name, value)
        return options

    def empty(self, num_bytes: int) -> torch.Tensor:
        """Ordinary memory: this backend has no symmetric arena and no algorithm that wants one."""
        return torch.empty(num_bytes, dtype=torch.uint8, device=self.device)

    def check(self) -> None:
        """Raise what ended the group, or PeerLost if a peer on this host died."""
        self._raise_if_ended()
        if self.hosts is not None:
            self.run("check", self.hosts.inside.check)

    def abort(self, why: str) -> None:
        """End the group; peers on other hosts see the connection close."""
        self._end(CommError(why))
        self.close()

    def close(self) -> None:
        """Drop the group if it is ours."""
        if not self._ended:
            self._ended, self._kind = "this communicator is closed; call commlib.init() for a new one", Closed
        self._recorded.close()
        if self.hosts is not None:
            self.hosts.inside.close()
        if self._own:
            if self.device.type == "cuda" and not isinstance(self.group, _Closed):
                self.group.shutdown()
            self.group = _Closed(self)
            self._store = None

    def leave(self) -> None:
        """Leave the group's end to the system: its destructor waits for calls under way, up to their deadline."""
        if self._own:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.group))
        self.close()

    def abandon(self) -> None:
        """Leave the group's threads, which a forked child does not have, and the parent's memory alone."""
        if self.hosts is not None:
            self.hosts.inside.abandon()
            self.hosts = None
        self.leave()


def _on_gpus(world: World, several: bool, timeout_s: float) -> bool:
    """Whether NCCL is to be the engine: where the tensors are on GPUs, and of several hosts with one for every rank."""
    if world.device or not several:
        return world.device == "cuda"
    mine = torch.cuda.is_available() and world.local_rank < torch.cuda.device_count()
    everyone = world.all_gather(str(int(mine)).encode(), timeout_s)
    if b"0" in everyone:
        return False
    torch.cuda.set_device(torch.cuda.current_device() or world.local_rank)
    return True


def _answer(question: Callable[[], Any]) -> Any:
    """Ask a store that may not answer."""
    return Lane("store").submit(question).result(ANSWER_S)


class _Closed:
    """Stands in for the group after close(): every use says why it cannot work."""

    def __init__(self, backend: TorchBackend) -> None:
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        self._backend.check()
        raise Closed("this communicator is closed")
