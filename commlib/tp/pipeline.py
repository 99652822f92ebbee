"""A pipeline over chunks of tokens: one chunk's communication overlaps the products of the others."""

from __future__ import annotations

import ctypes
import re
import weakref
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor

from commlib.communicator import Communicator, init
from commlib.core.work import Work
from commlib.errors import Unsupported
from commlib.tp.shard import gather_rows, scatter_rows

T = TypeVar("T")
Steps: TypeAlias = Generator[None, None, T]
"""What is done for one chunk; it yields between the start of a communication and its wait."""

Chunks: TypeAlias = int | tuple[int, ...]
"""So many of equal length, or what share of the tokens each has: (1, 2, 1)."""

WAITS_SMS, LOCAL_BYTES = 2, 1 << 20


class Pipeline:
    """How many chunks a number of tokens is computed in, and how their calls overlap the products.

    Without a rule everything runs one after the other. `tune_pipeline` of `commlib.tools.tune.pipeline` measures one: a
    dict, which can be stored and passed the next time.
    """

    def __init__(
        self,
        comm: Communicator,
        rule: Mapping[int, int | Sequence[int]] | None = None,
        *,
        max_sms: int = 0,
        multiple: int = 128,
        engines: bool = False,
    ) -> None:
        """Pipeline over `comm`.

        Args:
            comm: Makes the calls of chunks, asynchronously: that of the layers, or one of the same ranks.
            rule: {2048: 2, 8192: (1, 2, 1)}: from so many tokens on, so many chunks, or chunks with such shares of
                them; fewer tokens run one after the other.
            max_sms: The multiprocessors that such a call takes at most, and that products leave to it meanwhile; 0:
                as of any asynchronous call, and products leave none.
            multiple: The tokens of a chunk are a multiple of this, so that its products fill their tiles; the last
                chunk has the rest.
            engines: Move the chunks of a model in ways that copy engines can: rows come by all_to_all and all_gather,
                in symmetric memory, and each rank adds up those that came, behind products. A `max_sms` of 0 is then 2,
                for the engines' waits.
        """
        self.comm, self.max_sms, self.multiple = comm, max_sms or (WAITS_SMS if engines else 0), multiple
        self.engines, self.local = engines, comm
        if engines and comm.size > 1:  # what is done to rows here, no other rank takes part in
            self.local = init(backend=comm.backend, bootstrap="single", max_bytes=LOCAL_BYTES)
            weakref.finalize(self, self.local.close)
        self._rooms: dict[int, Tensor] = {}
        self.rule: dict[int, Chunks] = {
            int(tokens): chunks if isinstance(chunks, int) else tuple(chunks)
            for tokens, chunks in (rule or {}).items()  # JSON keeps keys as text, and shares as lists
        }
        wrong = any(tokens < 0 or min(_shares(chunks), default=0) < 1 for tokens, chunks in self.rule.items())
        if wrong or multiple < 1:
            raise ValueError(
                f"rule is {self.rule} and multiple is {multiple}, but tokens must be 0 or more, chunks and multiple 1 "
                "or more: {2048: 2} is two chunks from 2048 tokens on, {2048: (1, 2, 1)} a long one between short ones"
            )
        if engines and multiple % comm.size:
            raise ValueError(f"multiple is {multiple}, but with engines=True the {comm.size} ranks must divide it")

    def cuts(self, tokens: int, parts: int = 1) -> list[slice]:
        """Return the chunks of so many tokens; with `parts`, of each of so many equal parts of them."""
        below = [start for start in self.rule if start <= tokens]
        return self._cut(tokens, self.rule[max(below)] if below else 1, parts)

    def scatter_rows(self, x: Tensor, out: Tensor | None = None) -> Work:
        """Start to add up all ranks' rows; result() waits for those that this rank keeps."""
        work: Work = scatter_rows(self.comm, x, out, async_op=True, max_sms=self.max_sms)
        return work

    def gather_rows(self, rows: Tensor, out: Tensor) -> Work:
        """Start to put every rank's rows into `out`."""
        work: Work = gather_rows(self.comm, rows, out, async_op=True, max_sms=self.max_sms)
        return work

    def bring_rows(self, x: Tensor) -> tuple[list[Tensor], Work]:
        """Start to bring the other ranks' rows of this rank's part; return each rank's, those of this rank in x itself.

        They lie in symmetric memory next to x, which the next call for these rows of x overwrites.
        """
        blocks = x.unflatten(0, (self.comm.size, -1))
        room = self._room(x).unflatten(0, (self.comm.size, -1))
        parts = [blocks[rank] if rank == self.comm.rank else room[rank] for rank in range(self.comm.size)]
        name = "all_to_others" if self.comm.resources.native else "all_to_all"
        work: Any = self.comm.dispatcher.call(name, (room.flatten(0, 1), x), None, True, self.max_sms)
        return parts, work

    def overlap(self) -> AbstractContextManager[None]:
        """Have products leave the multiprocessors that the calls of chunks take; run() does this by itself."""
        if not self.max_sms or self.comm.device.type != "cuda":
            return leaving(0)
        there = torch.cuda.get_device_properties().multi_processor_count
        return leaving(self.max_sms if self.max_sms < there else 0)  # else calls may take all of them

    beside = overlap  # the name in earlier versions

    def run(self, programs: Iterable[Steps[Any]]) -> None:
        """Run one program for each chunk: each goes a step when the chunk after it has gone one.

        So a chunk waits for its communication behind what another one computes. All ranks take the same steps in the
        same order.
        """
        coming, running = iter(programs), list[Steps[Any]]()
        with self.overlap():
            while (newest := next(coming, None)) is not None or running:
                running = [one for one in [newest, *running] if one is not None and next(one, "over") is None]

    def divides(self, tokens: int, chunks: Chunks) -> bool:
        """Return whether so many tokens make all of these chunks, which are more than one."""
        return len(self._cut(tokens, chunks)) == len(_shares(chunks)) > 1

    def _room(self, x: Tensor) -> Tensor:
        """Return memory for rows like x, at the same place in another tensor."""
        whole = x.untyped_storage()
        if whole.data_ptr() not in self._rooms:
            if not self.comm.resources.holds(x):
                raise ValueError(
                    "a Pipeline with engines=True moves rows in symmetric memory, and these are not there; make them "
                    "with empty() of its communicator"
                )
            self._rooms[whole.data_ptr()] = self.comm.empty(whole.nbytes() // x.element_size(), dtype=x.dtype)
        return self._rooms[whole.data_ptr()].as_strided(x.shape, x.stride(), x.storage_offset())

    def _cut(self, tokens: int, chunks: Chunks, parts: int = 1) -> list[slice]:
        rows, step, shares = tokens // parts, max(1, self.multiple // parts), _shares(chunks)
        ends = [min(-(-rows * share // (sum(shares) * step)) * step, rows) for share in accumulate(shares)]
        cuts = [slice(start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True) if end > start]
        return cuts or [slice(0, rows)]


def _shares(chunks: Chunks) -> tuple[int, ...]:
    return (1,) * chunks if isinstance(chunks, int) else chunks


# --- products that leave some of a GPU's multiprocessors to calls that run at the same time ---------------------------


@contextmanager
def leaving(multiprocessors: int) -> Iterator[None]:
    """Have this thread's cuBLAS plan products for a GPU with so many multiprocessors less; 0 changes nothing.

    Such a product otherwise takes the whole GPU until it ends, and a call that starts behind it waits for that.
    """
    if not multiprocessors:
        yield
        return
    there = torch.cuda.get_device_properties().multi_processor_count
    if multiprocessors >= there:
        raise ValueError(f"products cannot leave {multiprocessors} of the GPU's {there} multiprocessors; leave fewer")
    carveout = torch._C._get_sm_carveout_experimental()
    _plan_for(there - multiprocessors)
    try:
        torch._C._set_sm_carveout_experimental(multiprocessors)  # products with a bias are cuBLASLt's
        yield
    finally:
        torch._C._set_sm_carveout_experimental(carveout)
        _plan_for(0)


def _plan_for(multiprocessors: int) -> None:
    handle = ctypes.c_void_p(torch.cuda.current_blas_handle())
    if status := _cublas().cublasSetSmCountTarget(handle, ctypes.c_int(multiprocessors)):
        raise Unsupported(
            f"cublasSetSmCountTarget({multiprocessors}) failed with status {status}; use a Pipeline without max_sms"
        )


@cache
def _cublas() -> Any:
    """Return the library that torch has loaded."""
    loaded = re.search(r"\S*/libcublas\.so\S*", Path("/proc/self/maps").read_text(encoding="utf-8"))
    if loaded is None or not hasattr(library := ctypes.CDLL(loaded[0]), "cublasSetSmCountTarget"):
        raise Unsupported(
            "products cannot leave multiprocessors to calls: torch has no cuBLAS with cublasSetSmCountTarget (11.5 or "
            "later); use a Pipeline without max_sms"
        )
    return library
