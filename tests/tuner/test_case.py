"""The sizes that a table is measured at."""

import itertools

import pytest
import torch

from commlib.tools.tune.case import Case


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.uint8, torch.float64], ids=str)
def test_sizes_are_a_grid_of_which_large_ones_divide_as_tensors_of_models_do(op, dtype):
    counts = Case(op, dtype, "graph", "plain").counts(2, 256, 1 << 28)
    sizes = list(counts)
    assert sizes == sorted(set(sizes))
    assert sizes[0] >= 256 and sizes[-1] == 1 << 28
    assert all(1.3 < later / size < 1.6 for size, later in itertools.pairwise(sizes))
    assert all(count % 16 == 0 for count in counts.values() if count >= 1024)
    assert all(count * dtype.itemsize % 16 == 0 for count in counts.values())
    assert {1 << n for n in range(8, 29)} <= set(sizes)


def test_the_smallest_sample_has_16_bytes_for_each_rank() -> None:
    counts = Case("all_gather", torch.bfloat16, "graph", "plain").counts(4, 1, 128)
    assert counts == {64: 8, 128: 16}
