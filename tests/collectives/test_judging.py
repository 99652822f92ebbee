"""What the conformance suite takes for right where order is free: the expected value decides."""

from __future__ import annotations

import torch

from commlib.collectives import COLLECTIVES
from commlib.collectives.spec import Call
from commlib.testing.conformance import _deviates, _peak

NAN, INF = float("nan"), float("inf")
SUM = COLLECTIVES["all_reduce"]


def judged(out: list[float], inputs: list[list[float]], dtype: torch.dtype = torch.float32, redop: str = "sum") -> str:
    """Judge the output of two ranks with these inputs."""
    a, b = (torch.tensor(x, dtype=dtype) for x in inputs)
    call = Call(0, 2, len(out), dtype, redop)
    expected = a.double() * b.double() if redop == "prod" else a.double() + b.double()
    return _deviates(torch.tensor(out, dtype=dtype), expected, _peak(SUM, call, [a, b]), call)


def test_nan_and_infinity_are_wrong_where_a_number_is_expected() -> None:
    assert judged([3.0, 3.0], [[1.0, 1.0], [2.0, 2.0]]) == ""
    for wrong in (NAN, INF, -INF, 4.0):
        assert "wrong: 1 of 2 elements, the first at 1" in judged([3.0, wrong], [[1.0, 1.0], [2.0, 2.0]])


def test_nan_is_right_where_it_is_expected_and_a_number_is_not() -> None:
    assert judged([NAN], [[NAN], [2.0]]) == ""
    assert judged([2.0], [[NAN], [2.0]]) != ""


def test_an_overflow_on_the_way_is_right_only_where_some_order_can_meet_it() -> None:
    assert judged([INF], [[60000.0], [0.5]], torch.float16, "prod") == ""
    assert judged([INF], [[300.0], [0.5]], torch.float16, "prod") != ""
