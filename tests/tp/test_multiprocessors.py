"""Products leave multiprocessors by cuBLAS's target and torch's carve-out, and both are as before afterwards."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from commlib.tp import Pipeline, multiprocessors
from commlib.tp.multiprocessors import leaving

THERE = 132


@pytest.fixture
def targets(monkeypatch):
    """Stand in for a GPU; return what cuBLAS was told, and the status that it answers with."""
    told = SimpleNamespace(values=[], status=0)

    def set_target(handle, value):
        assert handle.value == 77
        told.values.append(value.value)
        return told.status

    monkeypatch.setattr(multiprocessors, "_cublas", lambda: SimpleNamespace(cublasSetSmCountTarget=set_target))
    monkeypatch.setattr(torch.cuda, "current_blas_handle", lambda: 77)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda: SimpleNamespace(multi_processor_count=THERE))
    return told


def test_products_are_planned_for_the_rest_and_then_for_all_again(targets):
    with leaving(8):
        assert targets.values == [124]
        assert torch._C._get_sm_carveout_experimental() == 8
    assert targets.values == [124, 0]
    assert torch._C._get_sm_carveout_experimental() is None


def test_an_error_inside_leaves_nothing_behind(targets):
    with pytest.raises(ZeroDivisionError), leaving(16):
        1 / 0  # noqa: B018
    assert targets.values[-1] == 0
    assert torch._C._get_sm_carveout_experimental() is None


@pytest.mark.parametrize(
    ("device", "limit", "left"), [("cuda", 8, [124, 0]), ("cuda", 0, []), ("cuda", THERE, []), ("cpu", 8, [])]
)
def test_a_pipeline_leaves_what_its_calls_take_on_gpus(targets, device, limit, left):
    ran = []

    def program():
        ran.append(list(targets.values))
        yield

    Pipeline(SimpleNamespace(device=torch.device(device)), max_sms=limit).run([program()])
    assert ran == [left[:1]]
    assert targets.values == left
