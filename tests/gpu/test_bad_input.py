"""Bad input: refused on the rank that gives it, before anything is launched, with both sides in the message."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import pytest
import torch

from commlib.communicator import Communicator
from commlib.testing import Ranks

Made = Callable[..., torch.Tensor]
# What the call is, given a communicator and a maker of its tensors; and what the error says.
CASES: dict[str, tuple[Callable[[Communicator, Made], object], str]] = {
    "a tensor of the CPU": (
        lambda c, t: c.all_reduce(torch.ones(4)),
        r"x is on the CPU, but rank {r}'s communicator is on {device} .*move it with \.to\(comm\.device\)",
    ),
    "an output on the CPU": (
        lambda c, t: c.all_reduce(t(4), out=torch.ones(4)),
        "out is on the CPU, but rank {r}'s communicator is on {device}",
    ),
    "a tensor of another GPU": (
        lambda c, t: c.all_reduce(torch.ones(4, device=another_gpu(c))),
        "x is on {other}, but rank {r}'s communicator is on {device}",
    ),
    "an input on another GPU": (
        lambda c, t: c.all_gather_into_tensor(t(4 * c.size), torch.ones(4, device=another_gpu(c))),
        "x is on {other}, but rank {r}'s communicator is on {device}",
    ),
    "no tensor": (lambda c, t: c.all_reduce([1.0]), "x of all_reduce is a list, but must be a torch.Tensor"),  # type: ignore[arg-type]
    "another dtype, all_reduce": (
        lambda c, t: c.all_reduce(t(4), out=t(4).double()),
        "out is float64, but x is float32",
    ),
    "another dtype, all_gather": (
        lambda c, t: c.all_gather_into_tensor(t(4 * c.size).int(), t(4)),
        "out is int32, but x is float32",
    ),
    "another dtype, reduce_scatter": (
        lambda c, t: c.reduce_scatter_tensor(t(4).half(), t(4 * c.size)),
        "out is float16, but x is float32",
    ),
    "another dtype, all_to_all": (lambda c, t: c.all_to_all_single(t(8).bfloat16(), t(8)), "out is bfloat16, but x is"),
    "another count, all_reduce": (
        lambda c, t: c.all_reduce(t(4), out=t(3)),
        "out has 3 elements, but needs 4: as many as x",
    ),
    "another count, all_gather": (
        lambda c, t: c.all_gather_into_tensor(t(4), t(4)),
        "out has 4 elements, but needs {four_each}: one block of x per rank",
    ),
    "another count, reduce_scatter": (
        lambda c, t: c.reduce_scatter_tensor(t(4), t(5)),
        "x has 5 elements, but needs {four_each}: one block of out per rank",
    ),
    "another count, all_to_all": (lambda c, t: c.all_to_all_single(t(4), t(8)), "out has 4 elements, but needs 8"),
    "a count that ranks cannot share": (
        lambda c, t: c.all_to_all_single(t(8 * c.size + 1), t(8 * c.size + 1)),
        r"x has \d+ elements, which {n} ranks cannot share equally; give splits",
    ),
    "another count, gather": (
        lambda c, t: c.gather(t(4), c.rank, out=t(3)),
        "out has 3 elements, but needs {four_each}: one block of x per rank",
    ),
    "another count, scatter": (
        lambda c, t: c.scatter(t(5), c.rank, out=t(4)),
        "x has 5 elements, but needs {four_each}",
    ),
    "a transposed tensor": (
        lambda c, t: c.all_reduce(t(4, 4).t()),
        r"x is not contiguous, but must be; first x = x\.contiguous\(\)",
    ),
    "a strided output": (lambda c, t: c.all_reduce(t(4), out=t(8)[::2]), "out is not contiguous"),
    "an overlap, all_reduce": (lambda c, t: c.all_reduce((x := t(16))[:8], out=x[4:12]), "overlap in part"),
    "an overlap, all_gather": (
        lambda c, t: c.all_gather_into_tensor(x := t(4 * c.size), x[2:6]),
        "x and out overlap in part; pass the same memory for in place, or separate tensors",
    ),
    "another rank's block, all_gather": (
        lambda c, t: c.all_gather_into_tensor(x := t(4 * c.size), x[:4]),  # rank 0's, and this is the last rank
        "overlap in part",
    ),
    "an overlap, reduce_scatter": (
        lambda c, t: c.reduce_scatter_tensor((x := t(4 * c.size))[1:5], x),
        "overlap in part",
    ),
    "an overlap, all_to_all": (lambda c, t: c.all_to_all_single((x := t(16))[:8], x[4:12]), "overlap in part"),
    "a source beyond the ranks": (
        lambda c, t: c.broadcast(t(4), c.size),
        "src={n} is not a rank of this communicator: 0 to {r}",
    ),
    "a source below 0": (lambda c, t: c.broadcast(t(4), -1), "src=-1 is not a rank of this communicator: 0 to {r}"),
    "a target beyond the ranks": (lambda c, t: c.reduce(t(4), 99), "dst=99 is not a rank of this communicator"),
    "a gather to nobody": (lambda c, t: c.gather(t(4), 99), "dst=99 is not a rank of this communicator"),
    "a receiver beyond the ranks": (lambda c, t: c.send(t(4), 99), "dst=99 is not a rank of this communicator"),
    "a sender beyond the ranks": (lambda c, t: c.recv(t(4), 99), "src=99 is not a rank of this communicator"),
    "a scatter of nothing": (lambda c, t: c.scatter(None, c.rank), "rank {r} is the source and needs x"),
    "a scatter into nothing": (
        lambda c, t: c.scatter(None, 0),
        "rank {r} receives from rank 0 and needs out=",
    ),
    "an unknown reduction": (
        lambda c, t: c.all_reduce(t(4), "median"),
        "unknown reduction 'median'; use one of sum, prod",
    ),
    "an unknown reduction, reduce_scatter": (
        lambda c, t: c.reduce_scatter_tensor(t(4), t(4 * c.size), "mean"),
        "unknown reduction 'mean'; use one of sum",
    ),
    "a bitwise reduction of floats": (lambda c, t: c.all_reduce(t(4), "bxor"), "no reduction 'bxor' for float32"),
    "a bitwise reduction of floats, reduce": (
        lambda c, t: c.reduce(t(4).bfloat16(), 0, "band"),
        "no reduction 'band' for bfloat16",
    ),
    "a maximum of complex numbers": (
        lambda c, t: c.all_reduce(t(4).to(torch.complex64), "max"),
        "no reduction 'max' for complex64",
    ),
    "an average of bools": (lambda c, t: c.all_reduce(t(4).bool(), "avg"), "no reduction 'avg' for bool"),
    "sizes of fewer ranks": (
        lambda c, t: c.all_gatherv(t(4), t(4), [4]),
        "sizes has 1 entry, but the communicator has {n} ranks",
    ),
    "a negative size": (
        lambda c, t: c.all_gatherv(t(4), t(4), [-1] * c.size),
        r"sizes\[0\] is -1; sizes are 0 or more",
    ),
    "another size than its own": (
        lambda c, t: c.reduce_scatterv(t(3), t(4 * c.size), [4] * c.size),
        "out has 3 elements, but needs 4: its entry in sizes",
    ),
    "splits that do not add up": (
        lambda c, t: c.all_to_all_single(t(9), t(8), [1] * c.size, [8] + [0] * (c.size - 1)),
        "out_splits adds up to {n}, but its tensor has 9 rows",
    ),
    "splits in place": (
        lambda c, t: c.all_to_all_single(x := t(4 * c.size), x, [4] * c.size, [4] * c.size),
        "all_to_all with splits cannot run in place; pass another out",
    ),
    "a tensor of less than nothing": (
        lambda c, t: c.empty(-4, dtype=torch.uint8),
        "shape of empty is .-4,., but sizes are 0 or more",
    ),
}


def another_gpu(comm: Communicator) -> torch.device:
    return torch.device("cuda", (comm.device.index + 1) % torch.cuda.device_count())


def refuse(comm: Communicator, case: str) -> tuple[str, dict[str, object], bool]:
    """Only the last rank makes the bad call; then all make a good one, in two sizes, and meet."""
    text = "it made no bad call"
    if comm.rank == comm.size - 1:

        def tensor(*shape: int) -> torch.Tensor:
            return torch.ones(shape, device=comm.device)

        try:
            CASES[case][0](comm, tensor)
            text = "no error"
        except (ValueError, TypeError) as error:
            text = str(error)
    good = True
    for count in (100, 70_001):
        x = torch.full((count,), comm.rank + 1.0, device=comm.device)
        good &= bool((comm.all_reduce(x) == comm.size * (comm.size + 1) / 2).all())
    comm.barrier()
    comm.check()
    other = another_gpu(comm) if comm.device.type == "cuda" else ""
    names = {"r": comm.rank, "n": comm.size, "device": comm.device, "other": other, "four_each": 4 * comm.size}
    return text, {name: str(value) for name, value in names.items()}, good


def refuse_later(comm: Communicator, calls: Sequence[str]) -> tuple[list[str], bool]:
    """The same with async_op: the call or its wait() raises, and the next one works."""
    found = []
    x = torch.ones(4, device=comm.device)
    start: dict[str, Callable[[], object]] = {
        "broadcast": lambda: comm.broadcast(x, 99, async_op=True).wait(),
        "all_gather": lambda: comm.all_gather_into_tensor(x, x, async_op=True).wait(),
        "all_reduce": lambda: comm.all_reduce(x, "median", async_op=True).wait(),
    }
    for call in calls if comm.rank == 0 else ():
        try:
            start[call]()
            found.append("no error")
        except ValueError as error:
            found.append(str(error))
    y = comm.all_reduce(torch.ones(1000, device=comm.device), async_op=True).result()
    return found, bool((y == comm.size).all())


@pytest.mark.parametrize("case", list(CASES))
def test_bad_input_is_refused_with_both_sides_and_nothing_breaks(nccl_ranks: Ranks, case: str) -> None:
    answers = nccl_ranks.run(refuse, case)
    text, names, _ = answers[-1]
    pattern = re.sub(r"\{(\w+)\}", lambda found: re.escape(str(names[found[1]])), CASES[case][1])
    assert re.search(pattern, text), text
    assert all(good for _, _, good in answers)


def test_bad_input_of_an_asynchronous_call_is_refused_too(nccl_ranks: Ranks) -> None:
    answers = nccl_ranks.run(refuse_later, ("broadcast", "all_gather", "all_reduce"))
    texts = answers[0][0]
    assert "src=99 is not a rank" in texts[0]
    assert "out has 4 elements" in texts[1]
    assert "unknown reduction 'median'" in texts[2]
    assert all(good for _, good in answers)
