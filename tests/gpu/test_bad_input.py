"""Bad input: refused on the rank that gives it, before anything is launched, with both sides in the message.

What every backend refuses alike is in tests/test_arguments.py and tests/test_communicator.py.
"""

import re
from collections.abc import Callable

import pytest
import torch

from commlib.communicator import Communicator
from commlib.testing import Ranks

Made = Callable[..., torch.Tensor]
Case = Callable[[Communicator, Made], object]
# What the call is, given a communicator and a maker of its tensors; and what the error says.
CASES: dict[str, tuple[Case, str]] = {
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
    "a broadcast for later": (lambda c, t: c.broadcast(t(4), 99, async_op=True).wait(), "src=99 is not a rank"),
    "a gather for later": (lambda c, t: c.all_gather_into_tensor(t(4), t(4), async_op=True).wait(), "out has 4 elem"),
    "an all_reduce for later": (lambda c, t: c.all_reduce(t(4), "median", async_op=True).wait(), "unknown reduction"),
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
        for found in (comm.all_reduce(x.clone(), async_op=True).result(), comm.all_reduce(x)):
            good &= bool((found == comm.size * (comm.size + 1) / 2).all())
    comm.barrier()
    comm.check()
    other = another_gpu(comm) if comm.device.type == "cuda" else ""
    names = {"r": comm.rank, "device": comm.device, "other": other}
    return text, {name: str(value) for name, value in names.items()}, good


@pytest.mark.parametrize("case", list(CASES))
def test_bad_input_is_refused_with_both_sides_and_nothing_breaks(nccl_ranks: Ranks, case: str) -> None:
    answers = nccl_ranks.run(refuse, case)
    text, names, _ = answers[-1]
    pattern = re.sub(r"\{(\w+)\}", lambda found: re.escape(str(names[found[1]])), CASES[case][1])
    assert re.search(pattern, text), text
    assert all(good for _, _, good in answers)
