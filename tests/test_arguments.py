"""Wrong arguments of init() and of the public calls: the error names them, what came and what is wanted."""

import errno
import re
from itertools import product
from unittest.mock import Mock

import numpy as np
import pytest
import torch

import commlib
from commlib import bootstrap, env
from commlib.bootstrap import connect
from commlib.errors import CommError, Unsupported

WRONG = {
    "list": ([1, 2], "a list, but must be a torch.Tensor; e.g. torch.tensor([1, 2])"),
    "long list": (list(range(99)), "a list, but must be a torch.Tensor; e.g. torch.tensor(x)"),
    "number": (3, "an int, but must be a torch.Tensor; e.g. torch.tensor(3)"),
    "numpy": (np.ones(2), "a numpy array, but must be a torch.Tensor; e.g. torch.from_numpy(x)"),
    "None": (None, "None, but must be a torch.Tensor"),
    "str": ("x", "a str, but must be a torch.Tensor"),
}


def like(x):
    """Return an output for x, whatever that is."""
    return torch.empty(x.shape, dtype=x.dtype) if isinstance(x, torch.Tensor) else torch.ones(2)


TAKES_X = {
    "all_reduce": lambda comm, x: comm.all_reduce(x),
    "reduce": lambda comm, x: comm.reduce(x, 0),
    "reduce_scatter": lambda comm, x: comm.reduce_scatter_tensor(like(x), x),
    "reduce_scatterv": lambda comm, x: comm.reduce_scatterv(like(x), x, [len(like(x))]),
    "all_gather": lambda comm, x: comm.all_gather_into_tensor(like(x), x),
    "all_gatherv": lambda comm, x: comm.all_gatherv(like(x), x, [len(like(x))]),
    "all_to_all": lambda comm, x: comm.all_to_all_single(like(x), x),
    "all_to_allv": lambda comm, x: comm.all_to_all_single(like(x), x, [len(like(x))], [len(like(x))]),
    "broadcast": lambda comm, x: comm.broadcast(x, 0),
    "gather": lambda comm, x: comm.gather(x, 0),
    "scatter": lambda comm, x: comm.scatter(x, 0, out=like(x)),
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
X = torch.ones(4, 4)
OTHERS = [
    (lambda c: c.all_reduce(torch.ones(2), out=torch.ones(4)[::2]), ValueError, "pass a contiguous tensor and copy"),
    (lambda c: c.all_reduce(torch.ones(2), out=torch.ones(3)), ValueError, "out has 3 elements, but needs 2: as many"),
    (lambda c: c.all_reduce(X.view(-1)[:8], out=X.view(-1)[4:12]), ValueError, "overlap in part"),
    (lambda c: c.all_gather_into_tensor(torch.ones(3), X), ValueError, "out has 3 elements, but needs 16"),
    (lambda c: c.reduce_scatter_tensor(torch.ones(4), torch.ones(5)), ValueError, "x has 5 elements, but needs 4"),
    (lambda c: c.all_to_all_single(torch.ones(4), torch.ones(8)), ValueError, "out has 4 elements, but needs 8"),
    (lambda c: c.gather(torch.ones(4), 0, out=torch.ones(3)), ValueError, "out has 3 elements, but needs 4"),
    (lambda c: c.scatter(torch.ones(5), 0, out=torch.ones(4)), ValueError, "x has 5 elements, but needs 4"),
    (lambda c: c.reduce_scatter_tensor(X[:2].half(), X[:2]), ValueError, "out is float16, but x is float32"),
    (lambda c: c.all_to_all_single(X.int(), X), ValueError, "out is int32, but x is float32"),
    (lambda c: c.all_gather_into_tensor(X[1:3], X[:2]), ValueError, "overlap in part"),
    (lambda c: c.all_to_all_single(X[1:3], X[:2]), ValueError, "overlap in part"),
    (lambda c: c.all_gatherv(X, X, [-1]), ValueError, "sizes[0] is -1"),
    (lambda c: c.all_to_all_single(X.clone(), X, [-4]), ValueError, "out_splits[0] is -4"),
    (lambda c: c.all_to_all_single(X, X, [4]), ValueError, "cannot run in place; pass another out"),
    (lambda c: c.send_recv(X, 0, X, 0), ValueError, "send_recv cannot run in place; pass another out"),
    (lambda c: c.send_recv(X[:2], 0, X[1:3], 0), ValueError, "overlap in part"),
    (lambda c: c.send_recv(X, 0, torch.ones(1), 1), ValueError, "src=1 is not a rank of this communicator: 0 to 0"),
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
    (lambda c: c.explain("all_reduce", 8, placement="here"), ValueError, "placement is 'here', but must be one of"),
    (lambda c: c.explain("all_reduce", 8, mode="lazy"), ValueError, "mode is 'lazy', but must be one of eager, graph"),
    (lambda c: c.split("red"), TypeError, "color is of type str, but must be an int"),
    (lambda c: c.split(0, 1.5), TypeError, "key is of type float, but must be an int"),
    (lambda c: c.use("plan.json"), TypeError, "plan is of type str, but must be a commlib.Plan"),
]


@pytest.fixture(scope="module", params=["shm", "torch"])
def comm(request):
    with commlib.init(backend=request.param, bootstrap="single", max_bytes=1 << 16) as made:
        yield made


def refuses(kind, words, call, *arguments):
    with pytest.raises(kind, match=words):
        call(*arguments)


def test_what_is_no_tensor_is_named_with_a_remedy(comm):
    for (call, run), (kind, (wrong, told)) in product(TAKES_X.items(), WRONG.items()):
        if kind != "None" or not call.startswith("scatter"):  # ranks other than its source pass None
            refuses(TypeError, re.escape(f"x of {call.strip()} is {told}"), run, comm, wrong)


def test_an_output_that_is_no_tensor_is_named(comm):
    for call, run in TAKES_OUT.items():
        refuses(TypeError, f"out of {call.strip()} is a list, but must be a torch.Tensor$", run, comm, [1, 2])
        refuses(TypeError, rf"out of {call.strip()} is a numpy array, .* torch.from_numpy", run, comm, np.ones(2))


def test_x_and_out_may_lie_one_behind_the_other(comm):
    for x, out in ((X[:2], X[2:]), (X[2:], X[:2])):
        comm.all_reduce(x, out=out)


def test_a_tensor_of_another_kind_is_described(comm):
    for (call, run), (kind, (make, told)) in product(TAKES_X.items(), ELSEWHERE.items()):
        x = make()
        wrong = x.view(1, -1) if "scatter" in call and kind == "strided" else x
        refuses(ValueError, re.escape(told), run, comm, wrong)


def test_a_root_that_is_no_rank_is_named(comm):
    for name, run in TAKES_ROOT.values():
        for wrong in (1.5, None, "0"):
            refuses(TypeError, f"{name} is of type {type(wrong).__name__}, but must be an int", run, comm, wrong)
        for wrong in (1, -1):
            refuses(ValueError, f"{name}={wrong} is not a rank of this communicator: 0 to 0", run, comm, wrong)


def test_a_reduction_is_a_name_or_torchs_own(comm):
    for run in TAKES_OP.values():
        for wrong in (3, True, None, ["sum"], np.int64(0)):
            told = f"op is of type {type(wrong).__name__} ({wrong!r}), but must be one of sum, prod"
            refuses(TypeError, re.escape(told), run, comm, wrong)
        for wrong in ("mean", "SUM", torch.distributed.ReduceOp.PREMUL_SUM):
            refuses(ValueError, "unknown reduction .*; use one of sum, prod", run, comm, wrong)
        run(comm, torch.distributed.ReduceOp.SUM)


def test_sizes_that_are_no_integers_in_order_or_do_not_fit_are_named(comm):
    for argument, run in TAKES_SIZES.items():
        for wrong in (3, [1.5], ["4"], "4", {4}, iter([4])):
            words = rf"{argument.strip()}(\[0\])? is .*, but must be (a sequence of int|an int)"
            refuses(TypeError, words, run, comm, wrong)
        refuses(ValueError, f"{argument.strip()} has 2 entries", run, comm, [4, 1])
        refuses(ValueError, r"has 4 elements, but needs 3|adds up to 3, but its tensor has 4 rows", run, comm, [3])
        run(comm, np.array([4]))


def test_other_arguments_say_what_came_and_what_is_wanted(comm):
    for call, kind, told in OTHERS:
        refuses(kind, re.escape(told), call, comm)


OUTSIDE = {
    "max_bytes": (-1, 10**400),
    "timeout_s": (float("inf"), float("nan"), 10**400, 0, "abc"),
    "checked": ("maybe",),
    "max_sms": (-1, "all"),
    "backend": ("cuda",),
}
OF_WRONG_TYPE = {"max_bytes": 1.5, "max_sms": 1.5, "timeout_s": [1], "plan": 3, "backend": None}


def init(name, value):
    return commlib.init(bootstrap="nobody would be asked", **{name: value})


def test_a_wrong_argument_of_init_is_refused_by_name_before_anything_starts():
    for name, values in OUTSIDE.items():
        for value in values:
            refuses(ValueError, rf"{name}=.*(: expected | is not known)", init, name, value)
    for name, value in OF_WRONG_TYPE.items():
        refuses(TypeError, name, init, name, value)


def test_the_name_that_was_meant_is_suggested(comm):
    with pytest.raises(AttributeError, match=r"no attribute 'Radixcache'; did you mean RadixCache\?"):
        _ = commlib.Radixcache
    with pytest.raises(ValueError, match=r"did you mean all_reduce\?"):
        comm.explain("allreduce", 8)
    assert set(dir(commlib)) == set(commlib.__all__)
    assert all(getattr(commlib, name) for name in commlib.__all__)


@pytest.mark.parametrize("text", ["inf", "1e400", "-1", "nan", "1" + "0" * 400])
def test_a_variable_out_of_range_is_a_value_error_that_names_it(text, monkeypatch):
    for variable in (env.MAX_BYTES, env.TIMEOUT_S):
        monkeypatch.setenv(variable.name, text)
        with pytest.raises(ValueError, match=variable.name):
            variable.get()


@pytest.mark.parametrize("text", ["65536", "64K", " 64kb", "64KiB"])
def test_a_size_is_in_bytes_or_has_its_unit_in_any_spelling(text):
    assert env.parse_bytes(text) == 65536


@pytest.mark.parametrize("started", ["commlib", "srun"])
def test_a_rank_that_mpi_has_alone_is_no_job_of_one(started, monkeypatch):
    alone = bootstrap.BOOTSTRAPS["mpi"]._replace(
        connect=lambda timeout_s: bootstrap.SingleWorld(), detect=lambda environ: None
    )
    monkeypatch.setitem(bootstrap.BOOTSTRAPS, "mpi", alone)
    monkeypatch.setattr(bootstrap, "around", lambda: (started, 2))
    with pytest.raises(Unsupported, match=f"{started} started 2 ranks; .*`mpiexec -n N …`"):
        connect("mpi")
    together = Mock(size=2)
    monkeypatch.setitem(bootstrap.BOOTSTRAPS, "mpi", alone._replace(connect=lambda timeout_s: together))
    assert connect("mpi") is together


def test_a_limit_of_this_process_is_a_comm_error_that_names_it(monkeypatch):
    failing = Mock(side_effect=OSError(errno.EMFILE, "Too many open files"))
    monkeypatch.setattr("commlib.communicator.connect", failing)
    with pytest.raises(CommError, match=r"init\(\) ran into a limit: .*; raise `ulimit -n`"):
        commlib.init()
