"""The file of samples, which `commlib tune` fills while it measures."""

from __future__ import annotations

from pathlib import Path

import pytest

from commlib.tuner.samples import Store


def test_a_file_of_samples_that_cannot_be_written_is_named_with_the_option_for_another() -> None:
    store = Store(Path("/proc/none/samples.jsonl"), {}, resume=False)
    with pytest.raises(ValueError, match=r"cannot write /proc/none/samples\.jsonl: .*; -o FILE names another place"):
        store.add("all_reduce", 8, {})
