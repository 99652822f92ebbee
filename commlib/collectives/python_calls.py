"""The collectives of a backend without native code: the same calls as `_native.Calls`, made of algorithms in Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from commlib.backends.base import Backend
from commlib.collectives.spec import Collective
from commlib.redops import redop_code


class PythonCalls:
    """Runs the Python half of the backend's first algorithm of each collective."""

    def __init__(self, backend: Backend, collectives: dict[str, Collective]) -> None:
        self._run = {name: _half(backend, collective) for name, collective in collectives.items()}

    def all_reduce(self, x: Tensor, redop: Any, out: Tensor | None) -> Tensor:
        """Reduce in place, or into `out`; return where the result is."""
        target = x if out is None else out
        self._run["all_reduce"](*_tensors(out=target, x=x), redop_code(redop))
        return target

    def reduce(self, out: Tensor, x: Tensor, dst: int, redop: Any) -> None:
        """Reduce into `out` of rank `dst`."""
        self._run["reduce"](*_tensors(out=out, x=x), dst, redop_code(redop))

    def broadcast(self, x: Tensor, src: int) -> None:
        """Copy rank `src`'s x."""
        self._run["broadcast"](*_tensors(x=x), src)

    def all_gather(self, out: Tensor, x: Tensor) -> None:
        """Put every rank's x into `out`."""
        self._run["all_gather"](*_tensors(out=out, x=x))

    def all_gatherv(self, out: Tensor, x: Tensor, sizes: Sequence[int]) -> None:
        """Put every rank's x into `out`, of different sizes."""
        self._run["all_gatherv"](*_tensors(out=out, x=x), sizes)

    def reduce_scatter(self, out: Tensor, x: Tensor, redop: Any) -> None:
        """Reduce, and keep this rank's block."""
        self._run["reduce_scatter"](*_tensors(out=out, x=x), redop_code(redop))

    def reduce_scatterv(self, out: Tensor, x: Tensor, sizes: Sequence[int], redop: Any) -> None:
        """Reduce, and keep this rank's block, of different sizes."""
        self._run["reduce_scatterv"](*_tensors(out=out, x=x), sizes, redop_code(redop))

    def all_to_all(self, out: Tensor, x: Tensor) -> None:
        """Send block j of x to rank j."""
        self._run["all_to_all"](*_tensors(out=out, x=x))

    def all_to_allv(
        self, out: Tensor, x: Tensor, out_splits: Sequence[int], in_splits: Sequence[int], longest: int
    ) -> None:
        """Send a block of x to each rank, of different sizes."""
        self._run["all_to_allv"](*_tensors(out=out, x=x), out_splits, in_splits, longest)

    def gather(self, out: Tensor, x: Tensor, dst: int) -> None:
        """Put every rank's x into `out` of rank `dst`."""
        self._run["gather"](*_tensors(out=out, x=x), dst)

    def scatter(self, out: Tensor, x: Tensor, src: int) -> None:
        """Take this rank's block of rank `src`'s x."""
        self._run["scatter"](*_tensors(out=out, x=x), src)

    def send(self, x: Tensor, dst: int) -> None:
        """Send x to rank `dst`."""
        self._run["send_recv"](*_tensors(x=x), dst, True)

    def recv(self, x: Tensor, src: int) -> None:
        """Receive x from rank `src`."""
        self._run["send_recv"](*_tensors(x=x), src, False)

    def barrier(self) -> None:
        """Return once every rank has called it."""
        self._run["barrier"]()

    enqueue_barrier = barrier


def _half(backend: Backend, collective: Collective) -> Callable[..., Any]:
    halves = [a.run for a in collective.algorithms if a.backend == backend.name and a.run is not None]
    return partial(backend.run, collective.name, halves[0])


def _tensors(**given: Tensor) -> tuple[Tensor, ...]:
    for name, tensor in given.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} is a {type(tensor).__name__}, but must be a torch tensor")
    return tuple(given.values())
