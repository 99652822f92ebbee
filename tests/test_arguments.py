"""Wrong arguments of init() and of the public calls: the error names them, what came and what is wanted."""

import errno
import re
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


def arguments(x, out):
    """Return the arguments of each call with tensors, on one rank."""
    sizes = [len(out)]
    return {
        "all_reduce": {"x": x, "op": "sum", "out": out},
        "reduce": {"x": x, "dst": 0, "op": "sum", "out": out},
        "reduce_scatter": {"out": out, "x": x, "op": "sum"},
        "reduce_scatterv": {"out": out, "x": x, "sizes": sizes, "op": "sum"},
        "all_gather": {"out": out, "x": x},
        "all_gatherv": {"out": out, "x": x, "sizes": sizes},
        "all_to_all": {"out": out, "x": x},
        "all_to_allv": {"out": out, "x": x, "out_splits": sizes, "in_splits": sizes},
        "broadcast": {"x": x, "src": 0},
        "gather": {"x": x, "dst": 0, "out": out},
        "scatter": {"x": x, "src": 0, "out": out},
        "send": {"x": x, "dst": 0},
        "recv": {"x": x, "src": 0},
        "send_recv": {"x": x, "dst": 0, "out": out, "src": 0},
    }


METHODS = {
    "reduce_scatter": "reduce_scatter_tensor",
    "all_gather": "all_gather_into_tensor",
    **dict.fromkeys(("all_to_all", "all_to_allv"), "all_to_all_single"),
}


def make(comm, name, arguments):
    return getattr(comm, METHODS.get(name, name))(**arguments)


def with_each(parameters, value, count=2):
    """Yield (call, parameter, arguments) of each call that takes one of the parameters, which has this value."""
    for name, valid in arguments(torch.ones(count), torch.ones(count)).items():
        for parameter in parameters & valid.keys():
            yield name, parameter, {**valid, parameter: value}


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
    (lambda c: c.all_reduce(torch.ones(2), out=torch.ones(2).half()), ValueError, "out is float16, but x is float32"),
    (lambda c: c.scatter(None, 0), ValueError, "scatter: rank 0 is the source and needs x"),
    (lambda c: c.empty(2, 1.5), TypeError, "shape of empty is (2, 1.5), but must be ints"),
    (lambda c: c.empty(2, -1), ValueError, "shape of empty is (2, -1), but sizes are 0 or more"),
    (lambda c: c.empty(2, dtype="float32"), TypeError, "dtype of empty is 'float32', but must be a torch.dtype"),
    (lambda c: c.explain("all_sum", 8), ValueError, "op is 'all_sum', but must be one of all_reduce, all_gather"),
    (lambda c: c.explain("all_reduce", "8K"), ValueError, "num_bytes is '8K', but must be an int of 0 or more"),
    (lambda c: c.explain("all_reduce", 8, "float31"), ValueError, "dtype is 'float31', but must be a torch.dtype"),
    (lambda c: c.explain("all_reduce", 8, mode="lazy"), ValueError, "mode is 'lazy', but must be one of eager, graph"),
    (lambda c: c.split("red"), TypeError, "color is of type str, but must be an int"),
    (lambda c: c.split(0, 1.5), TypeError, "key is of type float, but must be an int"),
    (lambda c: c.use("plan.json"), TypeError, "plan is of type str, but must be a commlib.Plan"),
]


@pytest.fixture(scope="module", params=["shm", "torch"])
def comm(request):
    with commlib.init(backend=request.param, bootstrap="single", max_bytes=1 << 16) as made:
        yield made


def refuses(kind, words, function, *taken):
    with pytest.raises(kind, match=words):
        function(*taken)


def test_what_is_no_tensor_is_named_with_a_remedy(comm):
    for kind, (wrong, told) in WRONG.items():
        for name, _, taken in with_each({"x"}, wrong):
            if (kind, name) != ("None", "scatter"):  # ranks other than its source pass None
                refuses(TypeError, re.escape(f"x of {name} is {told}"), make, comm, name, taken)


def test_an_output_that_is_no_tensor_is_named(comm):
    for wrong, told in (
        ([1, 2], "a list, but must be a torch.Tensor$"),
        (np.ones(2), "a numpy array, .* torch.from_num"),
    ):
        for name, _, taken in with_each({"out"}, wrong):
            refuses(TypeError, f"out of {name} is {told}", make, comm, name, taken)


def test_x_and_out_may_lie_one_behind_the_other(comm):
    for x, out in ((X[:2], X[2:]), (X[2:], X[:2])):
        comm.all_reduce(x, out=out)


def test_a_tensor_of_another_kind_is_described(comm):
    for kind, (create, told) in ELSEWHERE.items():
        x = create()
        for name, taken in arguments(x, like(x)).items():
            if (kind, name) == ("strided", "scatter"):
                taken["x"] = x.view(1, -1)
            refuses(ValueError, re.escape(told), make, comm, name, taken)


def test_a_root_that_is_no_rank_is_named(comm):
    for wrong in (1.5, None, "0", 1, -1):
        kind, told = TypeError, f"is of type {type(wrong).__name__}, but must be an int"
        if isinstance(wrong, int):
            kind, told = ValueError, "is not a rank of this communicator: 0 to 0"
        for name, parameter, taken in with_each({"src", "dst"}, wrong):
            refuses(kind, f"{parameter}.*{told}", make, comm, name, taken)
        refuses(kind, f"src.*{told}", comm.broadcast_object, 3, wrong)


def test_a_reduction_is_a_name_or_torchs_own(comm):
    for wrong in (3, True, None, ["sum"], np.int64(0), "mean", "SUM", torch.distributed.ReduceOp.PREMUL_SUM):
        kind, told = TypeError, f"op is of type {type(wrong).__name__} "
        if isinstance(wrong, (str, torch.distributed.ReduceOp.RedOpType)):
            kind, told = ValueError, "unknown reduction .*; use one of sum, prod"
        for name, _, taken in with_each({"op"}, wrong):
            refuses(kind, told, make, comm, name, taken)
        refuses(kind, told, comm.explain, "all_reduce", 8, "float32", wrong)
    for name, _, taken in with_each({"op"}, torch.distributed.ReduceOp.SUM):
        make(comm, name, taken)


def test_sizes_that_are_no_integers_in_order_or_do_not_fit_are_named(comm):
    sizes = {"sizes", "out_splits", "in_splits"}
    for wrong in (3, [1.5], ["4"], "4", {4}, iter([4])):
        for name, parameter, taken in with_each(sizes, wrong, 4):
            words = rf"{parameter}(\[0\])? is .*, but must be (a sequence of int|an int)"
            refuses(TypeError, words, make, comm, name, taken)
    for wrong in ([4, 1], [3]):
        for name, parameter, taken in with_each(sizes, wrong, 4):
            words = f"{parameter} has 2 entries|has 4 elements, but needs 3|adds up to 3, but its tensor has 4 rows"
            refuses(ValueError, words, make, comm, name, taken)
    for name, _, taken in with_each(sizes, np.array([4]), 4):
        make(comm, name, taken)


def test_other_arguments_say_what_came_and_what_is_wanted(comm):
    for other, kind, told in OTHERS:
        refuses(kind, re.escape(told), other, comm)


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


@pytest.mark.parametrize("variable", [env.MAX_BYTES, env.TIMEOUT_S])
def test_a_variable_out_of_range_is_a_value_error_that_names_it(variable, monkeypatch):
    for text in ("inf", "1e400", "-1", "nan", "1" + "0" * 400):
        monkeypatch.setenv(variable.name, text)
        refuses(ValueError, variable.name, variable.get)


def test_a_size_is_in_bytes_or_has_its_unit_in_any_spelling():
    assert {env.parse_bytes(text) for text in ("65536", "64K", " 64kb", "64KiB")} == {65536}


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
