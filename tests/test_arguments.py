"""Wrong arguments of the public calls: the error names the argument, what came and what is wanted, on every backend."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

import commlib

WRONG = {
    "list": ([1, 2], "a list, but must be a torch.Tensor; e.g. torch.tensor([1, 2])"),
    "long list": (list(range(99)), "a list, but must be a torch.Tensor; e.g. torch.tensor(x)"),
    "number": (3, "an int, but must be a torch.Tensor; e.g. torch.tensor(3)"),
    "numpy": (np.ones(2), "a numpy array, but must be a torch.Tensor; e.g. torch.from_numpy(x)"),
    "None": (None, "None, but must be a torch.Tensor"),
    "str": ("x", "a str, but must be a torch.Tensor"),
}
TAKES_X = {
    "all_reduce": lambda comm, x: comm.all_reduce(x),
    "reduce": lambda comm, x: comm.reduce(x, 0),
    "reduce_scatter": lambda comm, x: comm.reduce_scatter_tensor(torch.ones(2), x),
    "reduce_scatterv": lambda comm, x: comm.reduce_scatterv(torch.ones(2), x, [2]),
    "all_gather": lambda comm, x: comm.all_gather_into_tensor(torch.ones(2), x),
    "all_gatherv": lambda comm, x: comm.all_gatherv(torch.ones(2), x, [2]),
    "all_to_all": lambda comm, x: comm.all_to_all_single(torch.ones(2), x),
    "all_to_allv": lambda comm, x: comm.all_to_all_single(torch.ones(2), x, [2], [2]),
    "broadcast": lambda comm, x: comm.broadcast(x, 0),
    "gather": lambda comm, x: comm.gather(x, 0),
    "scatter": lambda comm, x: comm.scatter(x, 0, out=torch.ones(2)),
    "scatter ": lambda comm, x: comm.scatter(x, 0),
    "send": lambda comm, x: comm.send(x, 0),
    "recv": lambda comm, x: comm.recv(x, 0),
    "send_recv": lambda comm, x: comm.send_recv(x, 0, torch.ones(2), 0),
}
TAKES_OUT = {
    "all_reduce": lambda comm, out: comm.all_reduce(torch.ones(2), out=out),
    "reduce": lambda comm, out: comm.reduce(torch.ones(2), 0, out=out),
    "reduce_scatter": lambda comm, out: comm.reduce_scatter_tensor(out, torch.ones(2)),
    "reduce_scatterv": lambda comm, out: comm.reduce_scatterv(out, torch.ones(2), [2]),
    "all_gather": lambda comm, out: comm.all_gather_into_tensor(out, torch.ones(2)),
    "all_gatherv": lambda comm, out: comm.all_gatherv(out, torch.ones(2), [2]),
    "all_to_all": lambda comm, out: comm.all_to_all_single(out, torch.ones(2)),
    "all_to_allv": lambda comm, out: comm.all_to_all_single(out, torch.ones(2), [2], [2]),
    "gather": lambda comm, out: comm.gather(torch.ones(2), 0, out=out),
    "send_recv": lambda comm, out: comm.send_recv(torch.ones(2), 0, out, 0),
    "scatter": lambda comm, out: comm.scatter(torch.ones(1, 2), 0, out=out),
}
TAKES_ROOT = {
    "broadcast": ("src", lambda comm, root: comm.broadcast(torch.ones(2), root)),
    "reduce": ("dst", lambda comm, root: comm.reduce(torch.ones(2), root)),
    "gather": ("dst", lambda comm, root: comm.gather(torch.ones(2), root)),
    "scatter": ("src", lambda comm, root: comm.scatter(torch.ones(1, 2), root)),
    "send": ("dst", lambda comm, root: comm.send(torch.ones(2), root)),
    "recv": ("src", lambda comm, root: comm.recv(torch.ones(2), root)),
    "broadcast_object": ("src", lambda comm, root: comm.broadcast_object(3, root)),
}
TAKES_OP = {
    "all_reduce": lambda comm, op: comm.all_reduce(torch.ones(2), op),
    "reduce": lambda comm, op: comm.reduce(torch.ones(2), 0, op),
    "reduce_scatter": lambda comm, op: comm.reduce_scatter_tensor(torch.ones(2), torch.ones(2), op),
    "reduce_scatterv": lambda comm, op: comm.reduce_scatterv(torch.ones(2), torch.ones(2), [2], op),
    "explain": lambda comm, op: comm.explain("all_reduce", 8, "float32", op),
}
TAKES_SIZES = {
    "sizes": lambda comm, sizes: comm.all_gatherv(torch.ones(4), torch.ones(4), sizes),
    "sizes ": lambda comm, sizes: comm.reduce_scatterv(torch.ones(4), torch.ones(4), sizes),
    "out_splits": lambda comm, sizes: comm.all_to_all_single(torch.ones(4), torch.ones(4), sizes, [4]),
    "in_splits": lambda comm, sizes: comm.all_to_all_single(torch.ones(4), torch.ones(4), [4], sizes),
}
ELSEWHERE = {
    "sparse": (lambda: torch.eye(2).to_sparse(), "layout torch.sparse_coo, on cpu"),
    "meta": (lambda: torch.ones(2, device="meta"), "layout torch.strided, on meta"),
    "strided": (lambda: torch.ones(4)[::2], "x is not contiguous, but must be; first x = x.contiguous()"),
}
OTHERS = [
    (
        lambda c: c.all_reduce(torch.ones(2), out=torch.ones(4)[::2]),
        ValueError,
        "pass a contiguous tensor and copy fro",
    ),
    (
        lambda c: c.all_reduce(torch.ones(2), out=torch.ones(3)),
        ValueError,
        "out has 3 elements, but needs 2: as many as x",
    ),
    (lambda c: c.all_reduce(torch.ones(2), out=torch.ones(2).half()), ValueError, "out is float16, but x is float32"),
    (lambda c: c.scatter(None, 0), ValueError, "scatter: rank 0 is the source and needs x"),
    (lambda c: c.scatter(torch.ones(1), 3), ValueError, "src=3 is not a rank of this communicator: 0 to 0"),
    (lambda c: c.empty("a"), TypeError, "shape of empty is 'a', but must be ints"),
    (lambda c: c.empty(2, 1.5), TypeError, "shape of empty is (2, 1.5), but must be ints"),
    (lambda c: c.empty(2, -1), ValueError, "shape of empty is (2, -1), but sizes are 0 or more"),
    (lambda c: c.empty(2, dtype="float32"), TypeError, "dtype of empty is 'float32', but must be a torch.dtype"),
    (lambda c: c.explain("all_sum", 8), ValueError, "op is 'all_sum', but must be one of all_reduce, all_gather"),
    (lambda c: c.explain("all_reduce", "8K"), ValueError, "num_bytes is '8K', but must be an int of 0 or more"),
    (lambda c: c.explain("all_reduce", 8, "float31"), ValueError, "dtype is 'float31', but must be a torch.dtype"),
    (
        lambda c: c.explain("all_reduce", 8, placement="here"),
        ValueError,
        "placement is 'here', but must be one of plain",
    ),
    (lambda c: c.explain("all_reduce", 8, mode="lazy"), ValueError, "mode is 'lazy', but must be one of eager, graph"),
    (lambda c: c.split("red"), TypeError, "color is of type str, but must be an int"),
    (lambda c: c.split(0, 1.5), TypeError, "key is of type float, but must be an int"),
    (lambda c: c.use("plan.json"), TypeError, "plan is of type str, but must be a commlib.Plan"),
]


@pytest.fixture(scope="module", params=["shm", "torch"])
def comm(request):
    with commlib.init(backend=request.param, bootstrap="single", max_bytes=1 << 16) as made:
        yield made


@pytest.mark.parametrize(
    ("call", "kind"),  # None is what ranks other than the source of a scatter pass
    [(call, kind) for call in TAKES_X for kind in WRONG if not (call.startswith("scatter") and kind == "None")],
)
def test_what_is_no_tensor_is_named_with_a_remedy(comm, call, kind):
    wrong, told = WRONG[kind]
    with pytest.raises(TypeError, match=re.escape(f"x of {call.strip()} is {told}")):
        TAKES_X[call](comm, wrong)


@pytest.mark.parametrize("call", TAKES_OUT)
def test_an_output_that_is_no_tensor_is_named(comm, call):
    with pytest.raises(TypeError, match=f"out of {call.strip()} is a list, but must be a torch.Tensor$"):
        TAKES_OUT[call](comm, [1, 2])
    with pytest.raises(TypeError, match=rf"out of {call.strip()} is a numpy array, .* torch.from_numpy\(out\)"):
        TAKES_OUT[call](comm, np.ones(2))


@pytest.mark.parametrize("call", TAKES_X)
@pytest.mark.parametrize("kind", ELSEWHERE)
def test_a_tensor_of_another_kind_is_described(comm, call, kind):
    make, told = ELSEWHERE[kind]
    x = make()
    with pytest.raises(ValueError, match=re.escape(told)):
        TAKES_X[call](comm, x.view(1, -1) if "scatter" in call and kind == "strided" else x)


@pytest.mark.parametrize("call", TAKES_ROOT)
def test_a_root_that_is_no_rank_is_named(comm, call):
    name, run = TAKES_ROOT[call]
    for wrong in (1.5, None, "0"):
        with pytest.raises(TypeError, match=f"{name} is of type {type(wrong).__name__}, but must be an int"):
            run(comm, wrong)
    for wrong in (1, -1):
        with pytest.raises(ValueError, match=f"{name}={wrong} is not a rank of this communicator: 0 to 0"):
            run(comm, wrong)


@pytest.mark.parametrize("call", TAKES_OP)
def test_a_reduction_is_a_name_or_torchs_own(comm, call):
    for wrong in (3, True, None, ["sum"], np.int64(0)):
        told = f"op is of type {type(wrong).__name__} ({wrong!r}), but must be one of sum, prod, min, max, avg, band"
        with pytest.raises(TypeError, match=re.escape(told)):
            TAKES_OP[call](comm, wrong)
    for wrong in ("mean", "SUM", torch.distributed.ReduceOp.PREMUL_SUM):
        with pytest.raises(ValueError, match=r"unknown reduction .*; use one of sum, prod, min, max, avg, band"):
            TAKES_OP[call](comm, wrong)
    TAKES_OP[call](comm, torch.distributed.ReduceOp.SUM)


@pytest.mark.parametrize("argument", TAKES_SIZES)
@pytest.mark.parametrize("wrong", [3, [1.5], ["4"], "4", {4}, iter([4])], ids=repr)
def test_sizes_that_are_no_integers_in_order_are_named(comm, argument, wrong):
    with pytest.raises(TypeError, match=rf"{argument.strip()}(\[0\])? is .*, but must be (a sequence of int|an int)"):
        TAKES_SIZES[argument](comm, wrong)


@pytest.mark.parametrize("argument", TAKES_SIZES)
def test_sizes_that_do_not_fit_say_both_sides(comm, argument):
    with pytest.raises(ValueError, match=f"{argument.strip()} has 2 entries"):
        TAKES_SIZES[argument](comm, [4, 1])
    with pytest.raises(ValueError, match=r"has 4 elements, but needs 3|adds up to 3, but its tensor has 4 rows"):
        TAKES_SIZES[argument](comm, [3])
    TAKES_SIZES[argument](comm, np.array([4]))


@pytest.mark.parametrize(("call", "kind", "told"), OTHERS, ids=[told[:40] for *_, told in OTHERS])
def test_other_arguments_say_what_came_and_what_is_wanted(comm, call, kind, told):
    with pytest.raises(kind, match=re.escape(told)):
        call(comm)


def test_a_parameter_is_a_tensor(comm):
    weight = torch.nn.Parameter(torch.ones(2))
    assert comm.all_reduce(weight) is weight
