"""`commlib profile` on a GPU: graphs and eager calls of every kernel, beside peers that need one."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
KERNELS = [("index",), ("index", "--masked"), ("store",), ("store", "--fp8"), ("metadata",)]


@pytest.mark.parametrize("heat", ["--cold", "--hot"])
@pytest.mark.parametrize("words", KERNELS, ids=" ".join)
def test_every_candidate_is_replayed_called_and_right(words: tuple[str, ...], heat: str) -> None:
    dim = () if "metadata" in words else ("--dim", "1024")
    command = [sys.executable, "-m", "commlib", "profile", *words, heat, "-n", "1,64", *dim, "--time", "4", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    found = json.loads(done.stdout)
    assert found["out_of_bounds"] == {"count": 0, "okay": True}
    assert [row for row in found["rows"] if row["skipped"] and row["candidate"] != "python loop"] == []
    for row in found["rows"]:
        if row["candidate"] == "python loop":
            continue
        assert (row["mode"], row["blocks"] >= 20, row["calls"] >= 20) == ("graph", True, True)
        assert row["calls"] % row["sets"] == 0
        assert row["eager"]["host_us"] <= row["eager"]["wall_us"]["p100"]
    assert "triton" in " ".join(row["candidate"] for row in found["rows"])
