"""Native functions called with Python objects as they are, without tvm-ffi's own way."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from commlib import extension
from commlib.kernels import index, store


@pytest.fixture(scope="module")
def gather():
    index(torch.ones(2, 2), torch.zeros(1, dtype=torch.int64))  # connects it
    return extension.direct("commlib.kernels.index")


def arguments(start=0, length=-1, policy="zero"):
    return torch.zeros(1, 2), torch.arange(6.0).view(3, 2), torch.tensor([2]), start, length, policy


@pytest.mark.parametrize("number", [1, np.int64(1), True], ids=["int", "numpy", "bool"])
def test_integers_of_every_kind_are_integers(gather, number):
    out, *rest = arguments(start=number, length=2)
    assert gather(out, *rest) is True
    assert out.tolist() == [[2, 3]]


def test_parameters_and_subclasses_are_tensors(gather):
    class Marked(torch.Tensor):
        pass

    for kind in (torch.nn.Parameter, lambda table: table.as_subclass(Marked)):
        out, table, *rest = arguments()
        gather(out, kind(table), *rest)
        assert out.tolist() == [[4, 5]]


@pytest.mark.parametrize("scale", [2.0, np.float64(2), torch.tensor([2.0])], ids=["float", "numpy", "tensor"])
def test_numbers_are_floats(scale):
    cache, rows = torch.zeros(4, 8, dtype=torch.float8_e4m3fn), torch.ones(1, 8)
    store(cache, None, torch.tensor([1]), rows[:, :4], rows[:, 4:], k_scale=scale)
    assert cache[1].float().tolist() == [0.5] * 8


@pytest.mark.parametrize("wrong", [[0], {}, 1.5j, "0"], ids=repr)
def test_other_objects_are_refused(gather, wrong):
    out, table, ids, *rest = arguments()
    with pytest.raises(TypeError):
        gather(out, table, ids, wrong, *rest[1:])
    assert out.tolist() == [[0, 0]]


def test_numbers_beyond_64_bits_are_refused(gather):
    out, table, ids, *rest = arguments()
    with pytest.raises(ValueError, match="does not fit 64 bits"):
        gather(out, table, ids, 1 << 70, *rest[1:])


def test_errors_keep_their_class_and_their_text(gather):
    out, table, ids, *rest = arguments()
    with pytest.raises(ValueError, match=r"weights has 1 dimensions, but .* reshape it"):
        gather(out, table[0], ids, *rest)
    with pytest.raises(TypeError, match="more than 16"):
        gather(*[0] * 17)
    with pytest.raises(ValueError, match=r"no native function has the name commlib\.nowhere"):
        extension.direct("commlib.nowhere")
