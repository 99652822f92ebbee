"""A call with tensors that stay where they are, as graphs need them; its values follow from a step's number."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import cast

import torch

from commlib.collectives import COLLECTIVES
from commlib.collectives.reference import ordered
from commlib.collectives.spec import Call, Collective
from commlib.communicator import Communicator
from commlib.plan import Plan
from tests.limited import Limited

# What takes tensors of any place and type, and moves data.
ALGORITHMS = [
    (name, algorithm.name)
    for name, spec in COLLECTIVES.items()
    for algorithm in spec.algorithms
    if algorithm.backend == "nccl" and algorithm.placement == "plain" and name != "barrier" and not spec.of_rows
]
KERNELS = [pair for pair in ALGORITHMS if pair[1].startswith("lsa_")]


class Steady:
    """One call of a collective, made again and again with other values."""

    def __init__(
        self,
        comm: Communicator | Limited,
        name: str,
        count: int,
        dtype: torch.dtype = torch.float32,
        *,
        symmetric: bool = False,
        in_place: bool = False,
        shifts: tuple[int, int] = (0, 0),
        redop: str = "sum",
    ) -> None:
        self.comm, self.spec = comm, COLLECTIVES[name]
        self.call = Call(comm.rank, comm.size, self.spec.whole(count), dtype, redop, root=1 if self.spec.rooted else 0)

        def allocate(elements: int, shift: int) -> torch.Tensor:
            if symmetric:  # as much on every rank, so that all tensors lie at the same places
                return comm.empty((most + shift,), dtype)[shift : shift + elements]
            return torch.empty(elements + shift, dtype=dtype, device=comm.device)[shift:]

        most = most_elements(self.spec, self.call)
        elements_in, elements_out = self.spec.shapes(self.call)
        self.apart = self.spec.out_of_place and not in_place
        if self.apart:
            self.x, self.out = allocate(elements_in, shifts[0]), allocate(elements_out, shifts[1])
        else:
            assert self.spec.has_in_place
            self.x, self.out = self.spec.in_place(self.call, allocate(max(elements_in, elements_out), shifts[0]))

    def input_of(self, rank: int, step: int) -> torch.Tensor:
        """Integers from 1 to 23, so that sums over 8 ranks are exact in every type and order.

        Which rank has the largest depends on the place, and the next step's are others.
        """
        elements = self.spec.shapes(replace(self.call, rank=rank))[0]
        places = torch.arange(elements, dtype=torch.int32, device=self.comm.device)
        return ((places * (2 * rank + 3) + 5 * rank + step) % 23 + 1).to(self.call.dtype)

    def load(self, step: int) -> None:
        """Bring this rank's input; what nobody writes must not look right."""
        self.out.fill_(111)
        self.x.copy_(self.input_of(self.comm.rank, step))

    def run(self) -> None:
        """Make the call, with the tensors it always has."""
        self.spec.invoke(cast("Communicator", self.comm), self.x, self.out, self.call)

    def wrong(self, step: int) -> str:
        """Say what is wrong with the output, or with an input that was to stay as it is; "" if nothing is."""
        call, inputs = self.call, [self.input_of(rank, step) for rank in range(self.comm.size)]
        reference = self.spec.reference(call, inputs, ordered)
        pairs = [] if reference is None else [("output", self.out, reference)]
        pairs += [("input", self.x, inputs[call.rank])] if self.apart else []
        far = self.spec.close(call.dtype) if self.spec.close else 0
        for what, tensor, values in pairs:
            out, expected = tensor.view(-1), values.view(-1).to(tensor.device)
            bad = (~torch.isclose(out, expected, rtol=far, atol=far)).nonzero().view(-1)
            if len(bad):
                at = int(bad[0])
                return (
                    f"rank {call.rank}: {self.spec.name} of {call.count} {call.dtype} ({call.redop}), step {step}: "
                    f"{len(bad)} of {len(out)} of the {what} are wrong, the first at {at}: {out[at].item()}, "
                    f"expected {expected[at].item()}"
                )
        return ""


def most_elements(spec: Collective, call: Call) -> int:
    """Return the elements of the largest tensor of a call on any rank."""
    return max(max(spec.shapes(replace(call, rank=rank))) for rank in range(call.size))


@contextmanager
def pinned(comm: Communicator, name: str, algorithm: str, **params: int) -> Iterator[None]:
    """Let one algorithm run at all sizes, for a while."""
    before = comm.plan
    comm.use(Plan.only({name: algorithm}, base=before, params=params))
    try:
        yield
    finally:
        comm.use(before)


def capture(*calls: Steady) -> torch.cuda.CUDAGraph:
    """Return a graph of these calls, one after the other."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call.run()
    return graph


def warm_up(*calls: Steady) -> None:
    """Compile kernels and let NCCL connect: neither belongs into what a test looks at."""
    for call in calls:
        call.load(0)
        call.run()
    torch.cuda.synchronize()


def first(texts: Sequence[str]) -> str:
    """The first complaint; all ranks make all calls before anyone looks."""
    return next((text for text in texts if text), "")


def checked(steps: int, run: Callable[[], object], *calls: Steady, begin: int = 0) -> str:
    """Give calls values, each others, run them, and look, so many times; return the first complaint."""
    found = []
    for step in range(begin, begin + steps):
        for number, call in enumerate(calls):
            call.load(step + number)
        run()
        found += [call.wrong(step + number) for number, call in enumerate(calls)]
    return first(found)


def settled(steps: int, run: Callable[[int], object], *calls: Steady) -> str:
    """The same where nothing else is under way when `run`, given the step, begins and ends."""
    numbers = itertools.count()

    def alone() -> None:
        torch.cuda.synchronize()
        run(next(numbers))
        torch.cuda.synchronize()

    return checked(steps, alone, *calls)


def take_turns(steps: int, graphs: Sequence[torch.cuda.CUDAGraph], *calls: Steady) -> str:
    """Have the last call, and graphs of all, go on in turns, and look at the values of each step."""
    numbers = itertools.count()

    def run() -> None:
        step = next(numbers)
        for turn in range(3):
            calls[-1].run() if (step + turn) % 3 == 0 else graphs[turn % len(graphs)].replay()

    return checked(steps, run, *calls)
