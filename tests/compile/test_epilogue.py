"""Epilogues of the user's: what runs without a GPU, what is refused, and what torch.compile makes of a call."""

import copy
import re
from collections.abc import Callable
from functools import partial
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import commlib
from commlib import env
from commlib.backends.nccl import NcclBackend
from commlib.collectives.reference import ordered
from commlib.communicator import Communicator
from commlib.compile import operators
from commlib.compile.epilogue import Epilogue
from commlib.errors import BuildFailed
from commlib.tools.testing import Ranks
from tests.epilogues import FP8_GROUPS, INT8, QK_NORM, RMS_NORM, SCALED, has_other_bits
from tests.errors_and_logs import message_of
from tests.fused import compiled_agrees, drawn
from tests.on_ranks import on_ranks
from tests.pages import blocks_of

TYPES = (torch.float32, torch.float16, torch.bfloat16)
WIDTH = 256
OUT = {"out": ("row", None)}


def given_to(epilogue: Epilogue, rows: int, dtype: torch.dtype) -> dict[str, Any]:
    """Return inputs and numbers, some of them of other types than x."""
    residual, weight = drawn(100, rows, WIDTH, dtype=dtype), drawn(101, WIDTH)
    each = {
        SCALED: {"residual": residual, "weight": weight, "limit": drawn(102, rows, 1), "eps": 1e-6},
        QK_NORM: {"residual": residual, "weight": weight.to(torch.float16), "eps": 1e-5},
        INT8: {},
        RMS_NORM: {"residual": None, "weight": weight, "eps": 1e-5, "weight_bias": 1.0},
        FP8_GROUPS: {"residual": residual, "weight": weight.to(torch.bfloat16), "eps": 1e-5, "weight_bias": 0.0},
    }
    return each[epilogue]


def has_other_shape(found: Tensor, wanted: Tensor) -> bool:
    return found.shape != wanted.shape


def one(comm: Communicator, epilogue: Epilogue, rows: int, dtype: torch.dtype) -> list[str]:
    inputs = [drawn(rank, rows, WIDTH, dtype=dtype) for rank in range(comm.size)]
    given, x = given_to(epilogue, rows, dtype), inputs[comm.rank].clone()
    kept = {name: value.clone() for name, value in given.items() if isinstance(value, Tensor)}
    found = epilogue(comm, x, **given)
    wanted = epilogue.reference(ordered(inputs, "sum"), **given)
    differs = has_other_bits if comm.backend == "shm" else has_other_shape  # torch's engines have another order
    wrong = [f"output {at}" for at, (a, b) in enumerate(zip(found, wanted, strict=True)) if differs(a, b)]
    wrong += [name for name, value in kept.items() if not torch.equal(given[name], value)]
    return wrong + ["x has changed"] * (not torch.equal(x, inputs[comm.rank]))


@pytest.mark.parametrize("world", [1, 2, 3])
@on_ranks(fixture="each_ranks")
def test_without_a_gpu_the_reference_works_on_the_sums(comm: Communicator, world: int) -> None:
    cases = product((SCALED, QK_NORM, INT8, RMS_NORM, FP8_GROUPS), (0, 1, 7), TYPES)
    return [(case[0].name, *case[1:], wrong) for case in cases if (wrong := one(comm, *case))]


@on_ranks(2)
def test_an_output_may_take_the_place_of_an_input(comm: Communicator) -> None:
    """In place of x, of the residual, in strided rows, and beside them an output that is made."""
    x = torch.full((2, 3, 2 * WIDTH), 1.0 + comm.rank)[..., :WIDTH]
    residual, weight = torch.full((2, 3, WIDTH), 3.0), torch.ones(WIDTH)
    total = comm.size * (comm.size + 1) / 2 + 3
    limit = torch.tensor([2.0])
    out, largest = SCALED(comm, x, residual=residual, weight=weight, limit=limit, eps=0, out=x, largest=None)
    assert out is x
    assert (x == 2).all()
    assert torch.equal(largest, torch.full((2, 3, 1), total))
    y, h = RMS_NORM(comm, residual, residual=x, weight=weight, eps=0.0, weight_bias=0.0, residual_out=x)
    assert h is x
    assert y is not residual
    assert (x == 3 * comm.size + 2).all()
    assert (residual == 3).all()


# --- what ranks disagree on


def other(comm: Communicator, how: str) -> str:
    width = 128 if how == "width" and comm.rank else 64
    x = torch.ones(4 * 64 // width, width)
    call: Callable[[], object] = partial(INT8, comm, x)
    if comm.rank and how == "epilogue":
        call = partial(SCALED, comm, x, residual=x, weight=x[0], limit=torch.ones(()), eps=0.0)
    elif comm.rank and how == "a type of an input":
        call = partial(QK_NORM, comm, x, residual=None, weight=x[0].half(), eps=0.0)
    elif how == "a type of an input":
        call = partial(QK_NORM, comm, x, residual=None, weight=x[0], eps=0.0)
    elif comm.rank and how == "norm":
        call = partial(comm.all_reduce_rms_norm, x, None, torch.ones(64))
    elif comm.rank and how == "all_reduce":
        call = partial(comm.all_reduce, x)
    return message_of(call)


@pytest.mark.parametrize("how", ["epilogue", "width", "a type of an input", "norm", "all_reduce"])
def test_ranks_with_different_epilogues_are_told(how: str) -> None:
    with Ranks(2, backend="shm", timeout_s=30.0) as ranks:
        for text in ranks.run(other, how):
            assert "all_reduce_epilogue #1 (float32, digest " in text
            assert text.count("256 elements") == (1 if how == "norm" else 2)


# --- what is refused


DECLARED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("'1st' is no name that Python and CUDA can use", {"inputs": {"1st": "row"}}),
    ("'for' is no name", {"numbers": ("for",)}),
    ("'my name' is no name", {"name": "my name"}),
    ("mine: 'x' means something else already; use another name", {"inputs": {"x": "row"}}),
    ("mine: 'load' means something else already", {"numbers": ("load",)}),
    ("mine: 'float' means something else already", {"numbers": ("float",)}),
    ("mine: 'max_sms' means something else already", {"numbers": ("max_sms",)}),
    ("numbers is 'eps', but must be names, as ('eps',)", {"numbers": "eps"}),
    ("reference is of type NoneType, but must be a function", {"reference": None}),
    ("mine: 'a' is torch.float32, but must be one of row,", {"inputs": {"a": torch.float32}}),
    ("mine: 'out' means something else already", {"inputs": {"out": "row"}}),
    ("mine: 'a' is 'rows', but must be one of row, columns, number", {"inputs": {"a": "rows"}}),
    ("mine: 'out' is 'columns', but must be one of row, number, groups", {"outputs": {"out": ("columns", None)}}),
    ("output 'out' is of torch.int64, but must be None or", {"outputs": {"out": ("row", torch.long)}}),
    ("output 'out' is 'row', but must be (a kind, a type or None)", {"outputs": {"out": "row"}}),
    ("mine: the source does not write output 'more'", {"outputs": {**OUT, "more": ("row", None)}}),
    ("mine needs an output, and may have 8 tensors in all and 8 numbers", {"outputs": {}}),
    ("mine needs an output, and may have 8 tensors", {"inputs": {f"a{i}": "row" for i in range(8)}}),
    ("mine needs an output, and may have 8 tensors", {"numbers": tuple(f"a{i}" for i in range(9))}),
)


def test_a_declaration_that_no_call_could_be_made_of_is_refused() -> None:
    for told, changed in DECLARED:
        declared = {"outputs": OUT, "name": "mine", "reference": lambda x: x}
        with pytest.raises((ValueError, TypeError), match=re.escape(told)):
            commlib.epilogue("store(out, x);", **{**declared, **changed})


def arguments(**changed: Any) -> dict[str, Any]:
    made = {"residual": torch.ones(2, 64), "weight": torch.ones(64), "limit": torch.ones(2, 1), "eps": 0.5}
    return {name: value for name, value in {**made, **changed}.items() if value is not ...}


BOTH = torch.ones(2, 128)
REFUSED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("scaled needs limit=; it takes residual=, weight=, limit=, eps=, out=, largest=", {"limit": ...}),
    ("scaled needs eps=", {"eps": ...}),
    ("scaled knows no bias=; it takes residual=, weight=", {"bias": torch.ones(64)}),
    ("x of scaled is a list, but must be a torch.Tensor", {"x": [1.0]}),
    ("x has rows of 63, but must have a multiple of 8 up to 16384", {"x": torch.ones(2, 63)}),
    ("residual has shape (3, 64), but x has (2, 64)", {"residual": torch.ones(3, 64)}),
    ("residual of scaled is a list, but must be a torch.Tensor", {"residual": [1.0]}),
    ("residual is int64, but must be float32, float16,", {"residual": torch.ones(2, 64).long()}),
    ("residual has rows that are not contiguous", {"residual": torch.ones(64, 2).t()}),
    ("residual is a tensor without plain memory", {"residual": torch.ones(2, 64, device="meta")}),
    ("weight has shape (2, 32), but x has rows of 64", {"weight": torch.ones(2, 32)}),
    ("limit has shape (2), but needs one number for each row of x, (2, 64): a last dim", {"limit": torch.ones(2)}),
    ("largest has shape (2), but needs one number for each row", {"largest": torch.ones(2)}),
    ("largest is float16, but must be float32", {"largest": torch.ones(2, 1).half()}),
    ("out is float16, but must be float32", {"out": torch.ones(2, 64).half()}),
    ("out of scaled is a list, but must be a torch.Tensor", {"out": [1.0]}),
    ("eps is of type str, but must be a number", {"eps": "small"}),
    ("out and residual share memory; pass the same", {"residual": BOTH[:, :64], "out": BOTH[:, 8:72]}),
    ("largest and weight share memory", {"weight": BOTH[0, :64], "largest": BOTH[0, 8:10].view(2, 1)}),
)


@pytest.mark.parametrize("backend", ["shm", "torch"])
def test_a_wrong_argument_is_told_with_both_sides(backend: str) -> None:
    with commlib.init(backend=backend, bootstrap="single") as comm:
        for told, changed in REFUSED:
            given = arguments(**changed)
            x = given.pop("x", torch.ones(2, 64))
            with pytest.raises((ValueError, TypeError), match=re.escape(told)):
                SCALED(comm, x, **given)


def test_what_is_no_communicator_is_named() -> None:
    with pytest.raises(TypeError, match=re.escape("comm of int8_token is of type str, but must be a commlib.Comm")):
        INT8("comm", torch.ones(8))  # type: ignore[arg-type]


def test_groups_need_rows_of_whole_groups(comm: Communicator) -> None:
    with pytest.raises(ValueError, match="multiple of 128"):
        FP8_GROUPS(comm, torch.ones(2, 64), residual=None, weight=torch.ones(64), eps=0.0, weight_bias=0.0)


@pytest.mark.parametrize(
    ("reference", "told"),
    [
        (lambda x: x[:, :4], "the reference of wrong returned [(2, 4)], but its outputs have shapes [(2, 8)]"),
        (lambda x: (x, x), "returned [(2, 8), (2, 8)], but its outputs have shapes [(2, 8)]"),
        (lambda x: None, "returned ['NoneType'], but"),
    ],
)
def test_a_reference_that_returns_something_else_is_told(comm, reference, told) -> None:
    wrong = commlib.epilogue("store(out, x);", outputs=OUT, reference=reference, name="wrong")
    with pytest.raises(ValueError, match=re.escape(told)):
        wrong(comm, torch.ones(2, 8))


def test_results_are_rounded_as_device_code_does(comm: Communicator) -> None:
    values = torch.tensor([0.5, 1.5, -2.5, 300.0, -300.0, float("nan"), float("inf"), -0.4])
    outputs = {"small": ("row", torch.int8), "tiny": ("row", torch.float8_e4m3fn)}
    both = commlib.epilogue("store(small, x); store(tiny, x);", outputs=outputs, reference=lambda x: (x, x * 2))
    small, tiny = both(comm, values)
    assert small.tolist() == [0, 2, -2, 127, -128, 0, 127, 0]
    assert tiny.float().tolist()[:5] == [1.0, 3.0, -5.0, 448.0, -448.0]
    assert torch.isnan(tiny.float()[5]) and tiny.float()[6] == 448.0


# --- device code


def test_a_mistake_in_the_source_is_told_by_its_line() -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    source = """
        const Row h = x;
        store(out, h * wieght);
    """
    wrong = commlib.epilogue(source, outputs=OUT, reference=lambda x: x, name="wrong")
    with pytest.raises(BuildFailed, match=r'(?s)cannot compile.*epilogue wrong\(2\): error: identifier "wieght"'):
        wrong.check()


def test_a_check_compiles_for_the_types_it_is_given(comm, monkeypatch, tmp_path) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    monkeypatch.setenv(env.CACHE_DIR.name, str(tmp_path))
    (text,) = [block.text for block in blocks_of("docs/extending.md") if "commlib.epilogue(" in block.text]
    shown: dict[str, Any] = {"comm": comm, "torch": torch, "commlib": commlib}
    exec(text.partition("x, residual = ")[0], shown)
    shown["int8_token"].check(torch.float16, residual=torch.float8_e5m2)
    SCALED.check(torch.float32, "sm_100", residual=torch.int8)
    assert len(list(tmp_path.iterdir())) == 2


def test_what_native_code_tells_the_builder_of_kernels_is_compiled(monkeypatch, tmp_path) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    monkeypatch.setenv(env.CACHE_DIR.name, str(tmp_path))
    rank: Any = SimpleNamespace(_arch="sm_90", size=2, _stamped=False)
    for epilogue, types in ((SCALED, "bfloat16,float32,float16"), (INT8, "")):
        told = f"world=2 pairs=1 epilogue={epilogue.symbol} types={types}"
        source = "collectives/all_reduce_rms_norm/lsa_lamport_oneshot.cu"
        code, symbol = NcclBackend._build(rank, source, "lsa_lamport_oneshot", "bfloat16", told, epilogue.text)
        assert code.startswith(b"\x7fELF")
        assert epilogue.symbol in symbol


def test_another_source_or_other_numbers_are_another_kernel() -> None:
    made = [
        commlib.epilogue(f"store(out, x * {factor});", outputs=OUT, reference=lambda x: x)
        for factor in ("2.f", "3.f", "3.f")
    ]
    made += [
        commlib.epilogue("store(out, x * (a - b));", outputs=OUT, numbers=names, reference=lambda x, a, b: x * (a - b))
        for names in (["a", "b"], ["b", "a"])
    ]
    assert made[0].symbol != made[1].symbol == made[2].symbol
    assert made[3].symbol != made[4].symbol
    assert made[0].symbol in made[0].text


def test_a_copy_of_what_holds_an_epilogue_holds_the_same() -> None:
    assert copy.deepcopy({"norm": INT8})["norm"] is INT8


# --- torch.compile


def program(comm: Communicator, x: Tensor) -> tuple[Tensor, ...]:
    weight, residual = x.new_ones(WIDTH), x * 3
    y, most = SCALED(comm, x + 1, residual=residual, weight=weight, limit=x.new_tensor(2.0), eps=1e-6)
    z, h = RMS_NORM(comm, y * (comm.rank + 1), residual=None, weight=weight, eps=1e-5, weight_bias=1.0)
    q, scale = INT8(comm, z * 2, out=torch.empty_like(z, dtype=torch.int8), max_sms=3)
    turned, _ = INT8(comm, (x.view(-1, 8).t() * 2).contiguous())  # which Inductor lays out as x
    h2 = x * 2
    SCALED(comm, z, residual=h2, weight=weight, limit=most, eps=0.5, out=h2)
    return y * 2, most, h + z, q.float() * scale, h2, turned.float()


def in_place(comm: Communicator, x: Tensor) -> tuple[Tensor, ...]:
    weight = x.new_ones(WIDTH)
    y, _ = RMS_NORM(comm, x, residual=None, weight=weight, eps=1e-5, weight_bias=1.0, out=x)
    assert y is x
    return x + 1, y


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("run", [program, in_place])
@on_ranks(2)
def test_a_compiled_program_computes_what_the_eager_one_does(comm: Communicator, run: Any, backend: str) -> None:
    assert compiled_agrees(comm, run, lambda step: drawn(step + comm.rank, 4, WIDTH), backend)[0]


@on_ranks(2)
def test_a_compiled_call_runs_on_the_communicator_it_is_given(comm: Communicator) -> None:
    graph = torch.compile(lambda comm, x: INT8(comm, x)[1], fullgraph=True, backend="aot_eager")
    with comm.split(comm.rank) or comm as alone:
        found = [float(graph(made, torch.full((1, 8), 127.0))) for made in (comm, alone, comm)]
    assert found == [2.0, 1.0, 2.0]


@on_ranks(2)
def test_what_is_traced_of_a_reduce_writes_on_its_root_only(comm: Communicator) -> None:
    x = torch.full((8,), comm.rank + 1.0)
    operators._TRACED["reduce"](comm.dispatcher.calls, None, x, 0, "sum")
    assert x.tolist() == [3.0 if comm.rank == 0 else 2.0] * 8


def test_an_epilogue_declared_after_dynamo_was_loaded_is_ordered_too(comm: Communicator) -> None:
    import torch._dynamo

    late = commlib.epilogue("store(out, x - 1.f);", outputs=OUT, reference=lambda x: x - 1, name="late")
    assert f"epilogue_{late.symbol}" in operators._ORDERED
    graph = torch.compile(lambda x: late(comm, x) * 2, fullgraph=True, backend="aot_eager")
    assert graph(torch.ones(8)).tolist() == [0.0] * 8
