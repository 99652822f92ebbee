"""The sizes that a table is measured at, and the file of samples that `commlib tune` fills meanwhile."""

import itertools
from pathlib import Path

import pytest
import torch

from commlib.tools.tune.case import Case, Option
from commlib.tools.tune.samples import Store


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


def test_a_file_of_samples_that_cannot_be_written_is_named_with_the_option_for_another() -> None:
    store = Store(Path("/proc/none/samples.jsonl"), {}, resume=False)
    with pytest.raises(ValueError, match=r"cannot write /proc/none/samples\.jsonl: .*; -o FILE names another place"):
        store.add("all_reduce", 8, {})


def test_a_run_goes_on_from_samples_of_the_same_conditions_only(tmp_path: Path) -> None:
    path, option = tmp_path / "samples.jsonl", Option("shm_oneshot")
    Store(path, {"world": 2}, resume=False).add("all_reduce", 8, {option: (1.0, 2.0)})
    assert Store(path, {"world": 2}, resume=True).find("all_reduce", 8) == {option: (1.0, 2.0)}
    assert Store(path, {"world": 4}, resume=True).find("all_reduce", 8) is None
