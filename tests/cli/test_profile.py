"""`commlib profile` of kernels: what is measured, compared, printed, written and refused; never a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from commlib.kernels import decode_attention
from commlib.peers.kernels import attention, sets
from commlib.peers.kernels.measure import measure_case
from commlib.peers.kernels.sets import rows_of
from tests.cli.calls import exit_code, refuses, written

SCHEMA = "cli/profile/schema.json"
QUICK = ("--dim", "96", "--time", "0.1", "--device", "cpu")


@pytest.fixture(autouse=True)
def small_tables() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sets, "CPU_SHARED_BYTES", 1 << 18)
        patch.setattr(sets, "MOST_SETS", 6)
        patch.setenv("COLUMNS", "80")
        yield


CASES = [("index",), ("store", "--fp8"), ("metadata",)]


@pytest.mark.parametrize("words", CASES, ids=" ".join)
def test_every_kernel_is_measured_beside_its_peers(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "report.json"
    assert exit_code("profile", *words, "-n", "1,17", *QUICK, "-o", str(path)) == 0
    found = written(path, SCHEMA)
    assert (found["complete"], found["config"]["threads"], found["config"]["device"]) == (True, 1, "cpu")
    assert found["out_of_bounds"] == {"count": 0, "okay": True}
    assert {row["n"] for row in found["rows"]} == {1, 17}
    by_role: dict[str, set[str]] = {}
    for row in found["rows"]:
        assert bool(row["skipped"]) != (row["time_us"] is not None)
        by_role.setdefault(row["role"], set()).add(row["candidate"])
        if row["time_us"]:
            assert row["wrong"] == (None if row["role"] == "floor" else 0)
            assert row["gbps"] > 0
            assert row["of_copy"] > 0
            assert row["eager"]["host_us"] is None  # on the CPU all of it is the host's
    assert by_role["ours"] == ({"commlib", "commlib unique"} if words[0] == "store" else {"commlib"})
    assert "copy" in by_role["floor"]
    assert {"torch.compile"} < by_role["peer"]
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert text.count(" commlib* ") == 2
    assert "# skipped torch.compile: takes long on the CPU; --compile (2 cases)" in text


def test_a_wrong_option_is_one_line() -> None:
    cases = (
        ("-n 0", "a number that is not above 0"),
        ("--dtype bf17", "no element type 'bf17'"),
        ("--device meta", "not supported"),
        ("--device cpu --flush", "need a GPU"),
        ("-o nowhere/report.json", "no folder nowhere"),
    )
    refuses("profile index", cases)


def test_wrong_values_fail_the_run_and_are_marked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def forgetful(weights: Tensor, ids: Tensor, *, out: Tensor) -> Tensor:
        out[:-1] = weights[ids[:-1]]
        return out

    monkeypatch.setattr("commlib.peers.kernels.index.index", forgetful)
    assert exit_code("profile", "index", "-n", "3", *QUICK) == 1
    text = capsys.readouterr().out
    (line,) = (line for line in text.splitlines() if "commlib*" in line)
    assert line.endswith("WRONG")
    assert "FAILED" in text


@pytest.mark.slow
def test_what_ours_raises_is_said_and_fails_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*args: Any, **options: Any) -> None:
        raise RuntimeError("out of\norder")

    monkeypatch.setattr("commlib.peers.kernels.index.index", broken)
    assert exit_code("profile", "index", "-n", "3", *QUICK) == 1
    assert "# skipped commlib: RuntimeError: out of order" in capsys.readouterr().out


def test_ctrl_c_keeps_what_was_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done: list[int] = []

    def interrupted(*args: Any) -> Any:
        if done:
            raise KeyboardInterrupt
        done.append(1)
        return measure_case(*args)

    monkeypatch.setattr("commlib.cli.profile.run.measure_case", interrupted)
    path = tmp_path / "report.json"
    assert exit_code("profile", "index", "-n", "2,3", *QUICK, "-o", str(path)) == 130
    found = written(path, SCHEMA)
    assert (found["complete"], found["ended"]) == (False, "interrupted")
    assert {row["n"] for row in found["rows"]} == {2}
    assert "# interrupted: not complete" in capsys.readouterr().out


@pytest.mark.slow
def test_rows_of_sets_follow_each_other_or_are_distinct_or_repeat() -> None:
    cpu = torch.device("cpu")
    assert rows_of("sequential", 3, 4, 10, cpu).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 0, 1]]
    found = rows_of("random", 3, 32, 96, cpu)
    assert sorted(found.view(-1).tolist()) == list(range(96))
    assert found[0].tolist() != list(range(32))
    found = rows_of("zipf", 4, 256, 512, cpu)
    assert found.view(-1).bincount(minlength=512).max() > 1024 / 16 > 1024 / 512  # the first has a sixth of all
    unique = rows_of("zipf", 4, 256, 512, cpu, unique=True)
    assert all(len(set(of_set)) == 256 for of_set in unique.tolist())


ATTENTION_SCHEMA = "cli/profile/attention_schema.json"
ATTENTION = ("--time", "0.1", "--device", "cpu", "--dim", "32")
ON_GPUS = {"torch cuDNN", "torch efficient", "FlexAttention", "flash-attn", "FlashInfer"}


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # the same candidates everywhere


@pytest.mark.slow
def test_decoding_is_measured_beside_who_is_here(tmp_path, capsys):
    path = tmp_path / "report.json"
    assert exit_code("profile", "attention", "--compare", "-b", "1,3", "-l", "40", *ATTENTION, "-o", str(path)) == 0
    found = written(path, ATTENTION_SCHEMA)
    assert (found["complete"], found["config"]["phase"], found["config"]["beside"]) == (True, "decode", "compare")
    rows = {row["candidate"]: row for row in found["rows"] if row["batch"] == 3}
    assert {name for name, row in rows.items() if row["skipped"]} == {*ON_GPUS, "read, Triton"}
    for name in ("commlib", "commlib split 256", "gather, torch", "torch flash", "torch math"):
        assert (rows[name]["wrong"], rows[name]["error"] < 1e-2) == (0, True)
        assert rows[name]["time_us"]["p50"] > 0
    assert rows["commlib"]["bytes"] == 3 * (40 * 2 * 32 + 2 * 8 * 32) * 2
    assert rows["commlib"]["flops"] == 3 * 4 * 8 * 32 * 40
    assert rows["commlib"]["versus"]["of"] in {"gather, torch", "torch flash", "torch math"}
    assert max(row["of_ceiling"] for row in rows.values() if row["role"] == "floor" and row["of_ceiling"]) == 1
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert "# skipped flash-attn: flash_attn is not installed (2 cases)" in text
    assert "# Values too far off : 0 OK" in text


@pytest.mark.slow
def test_prefill_is_measured_beside_what_the_model_does(tmp_path):
    path = tmp_path / "report.json"
    words = ("--phase", "prefill", "--compare", "-b", "2", "-l", "40", "--dtype", "fp32")
    assert exit_code("profile", "attention", *words, *ATTENTION, "-o", str(path)) == 0
    rows = {row["candidate"]: row for row in written(path, ATTENTION_SCHEMA)["rows"]}
    assert {name for name, row in rows.items() if row["time_us"]} == {
        "matmul",
        "commlib.tp",
        "torch",
        "torch flash",
        "torch math",
    }
    assert all(row["error"] < 1e-5 for row in rows.values() if row["error"] is not None)
    assert rows["commlib.tp"]["flops"] == 4 * 8 * 32 * 2 * 800


def test_a_wrong_value_of_attention_fails_the_run(tmp_path, monkeypatch, capsys):
    def wrong(*tensors, out, **options):
        decode_attention(*tensors, out=out, **options)
        out[0, 0, :3] = float("nan")
        return out

    monkeypatch.setattr(attention, "decode_attention", wrong)
    path = tmp_path / "report.json"
    assert exit_code("profile", "attention", "-b", "1", "-l", "20", *ATTENTION, "-o", str(path)) == 1
    row = written(path, ATTENTION_SCHEMA)["rows"][0]
    assert (row["candidate"], row["wrong"] % 3, row["wrong"] > 0, row["error"]) == ("commlib", 0, True, None)
    text = capsys.readouterr().out
    assert "WRONG" in text
    assert "FAILED" in text


def test_attention_that_cannot_be_measured_is_refused():
    cases = (
        ("--phase prefill --fp8", "--fp8, --ragged and --tune are of decoding"),
        ("--heads 6 --kv-heads 4", "--heads 6 is no multiple of --kv-heads 4"),
        ("--dtype int32", "attention is profiled for bfloat16, float16, float32, not int32"),
        ("-l 1G", "--length has 1073741824, but 16777216 is the most"),
    )
    refuses("profile attention --device cpu", cases)
