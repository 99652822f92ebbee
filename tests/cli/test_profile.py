"""`commlib profile` as a user meets it: what is measured, printed, written and refused; never a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from torch import Tensor

from commlib.cli import main
from commlib.cli.profile.job import Job
from commlib.peers.kernels import KERNELS, sets
from commlib.peers.kernels.measure import measure_case
from commlib.peers.kernels.sets import rows_of

SCHEMA = json.loads((resources.files("commlib.cli.profile") / "schema.json").read_text(encoding="utf-8"))
QUICK = ("--dim", "96", "--time", "0.1", "--device", "cpu")
Figures = dict[str, Any]


@pytest.fixture(autouse=True)
def small_tables() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sets, "CPU_SHARED_BYTES", 1 << 18)
        patch.setattr(sets, "MOST_SETS", 6)
        patch.setenv("COLUMNS", "80")
        yield


def profile(*words: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(["profile", *words])
    assert isinstance(end.value.code, int)
    return end.value.code


def written(path: Path) -> Figures:
    found: Figures = json.loads(path.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(SCHEMA).validate(found)
    return found


CASES = [("index",), ("index", "--masked"), ("store",), ("store", "--fp8"), ("metadata",)]


@pytest.mark.parametrize("words", CASES, ids=" ".join)
def test_every_kernel_is_measured_beside_its_peers(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "report.json"
    assert profile(*words, "-n", "1,17", *QUICK, "-o", str(path)) == 0
    found = written(path)
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


def test_ours_is_compared_with_the_best_peer_and_others_with_ours(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    profile("index", "-n", "64", *QUICK, "-o", str(path))
    rows = {row["candidate"]: row for row in written(path)["rows"] if row["time_us"]}
    ours = rows["commlib"]["versus"]
    peers = [row for row in rows.values() if row["role"] == "peer"]
    best = min(peers, key=lambda row: float(row["time_us"]["p50"]))
    assert ours["of"] == best["candidate"]
    assert ours["low"] <= ours["ratio"] <= ours["high"]
    for name, row in rows.items():
        if name != "commlib":
            ratio = row["time_us"]["p50"] / rows["commlib"]["time_us"]["p50"]
            assert row["versus"]["of"] == name
            assert row["versus"]["ratio"] == pytest.approx(ratio, rel=0.25)  # p50 is a block's, the median may be none


def test_json_alone_goes_to_stdout_and_nothing_beside_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert profile("metadata", "-n", "3", *QUICK[2:], "--json") == 0
    found = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator(SCHEMA).validate(found)
    assert found["command"] == "commlib profile metadata -n 3 --time 0.1 --device cpu --json"


def test_patterns_stand_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    assert profile("index", "-n", "4", "--compare-patterns", *QUICK) == 0
    text = capsys.readouterr().out
    (head,) = (line for line in text.splitlines() if "sequential" in line and "zipf" in line)
    below = text[text.index(head) :].splitlines()[3:]
    assert below[0].split()[:2] == ["4", "commlib*"]
    assert len(below[0].split()) == 2 + 2 * 3
    assert max(map(len, text.splitlines())) <= 80


def test_a_sweep_is_cold_and_hot_and_of_all_sizes(asked: Callable[..., Job]) -> None:
    job = asked("index", "--sweep")
    assert len(job.cases) == 3 * 11 * 2
    assert {case.hot for case in job.cases} == {False, True}
    assert len(asked("store", "--sweep", "--fp8").cases) == 4 * 9 * 2
    assert {case.n for case in asked("metadata", "--sweep").cases} == {1, 4, 16, 64, 128, 512}
    chosen = asked("store", "--sweep", "--dims", "64,1K", "-n", "5", "--hot", "--pattern", "zipf").cases
    assert [(case.dim, case.n, case.hot, case.pattern) for case in chosen] == [
        (64, 5, True, "zipf"),
        (1024, 5, True, "zipf"),
    ]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Job]:
    """Return what the words of a command line ask for, without measuring."""
    jobs: list[Job] = []
    monkeypatch.setattr("commlib.cli.profile.run.main", lambda job, output, command: jobs.append(job) or 0)

    def job(*words: str) -> Job:
        assert profile(*words, "--device", "cpu") == 0
        return jobs.pop()

    return job


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("radish",), "No such command 'radish'"),
        (("index", "-n", "0"), "a number that is not above 0"),
        (("index", "-n", "1;2"), "is no list of numbers"),
        (("index", "--dtype", "int8"), "profiled for bfloat16, float16, float32, not int8"),
        (("index", "--dtype", "bf17"), "no element type 'bf17'"),
        (("index", "--fp8"), "No such option"),
        (("metadata", "--masked"), "No such option"),
        (("index", "--device", "tpu"), "--device 'tpu' is none"),
        (("index", "--device", "meta"), "not supported"),
        (("index", "--device", "cpu", "--flush"), "need a GPU"),
        (("index", "--plot", "curves.pdf"), "no .png or .svg file"),
        (("index", "-o", "nowhere/report.json"), "no folder nowhere"),
        (("index", "--peer", "nowhere.py"), "does not exist"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_wrong_option_is_one_line(capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str) -> None:
    assert profile(*words) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert said in message


def test_wrong_values_fail_the_run_and_are_marked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def forgetful(weights: Tensor, ids: Tensor, *, out: Tensor) -> Tensor:
        out[:-1] = weights[ids[:-1]]
        return out

    monkeypatch.setattr("commlib.peers.kernels.index.index", forgetful)
    assert profile("index", "-n", "3", *QUICK) == 1
    text = capsys.readouterr().out
    (line,) = (line for line in text.splitlines() if "commlib*" in line)
    assert line.endswith("WRONG")
    assert "FAILED" in text


def test_what_ours_raises_is_said_and_fails_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*args: Any, **options: Any) -> None:
        raise RuntimeError("out of\norder")

    monkeypatch.setattr("commlib.peers.kernels.index.index", broken)
    assert profile("index", "-n", "3", *QUICK) == 1
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
    assert profile("index", "-n", "2,3", *QUICK, "-o", str(path)) == 130
    found = written(path)
    assert (found["complete"], found["ended"]) == (False, "interrupted")
    assert {row["n"] for row in found["rows"]} == {2}
    assert "# interrupted: not complete" in capsys.readouterr().out


def test_help_names_every_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    assert profile("--help") == 0
    text = capsys.readouterr().out
    assert [name for name in KERNELS if f"\n  {name} " not in text] == []


CPU = torch.device("cpu")


def test_sequential_rows_follow_each_other_from_set_to_set() -> None:
    assert rows_of("sequential", 3, 4, 10, CPU).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 0, 1]]


def test_random_rows_of_a_set_are_distinct() -> None:
    found = rows_of("random", 3, 32, 96, CPU)
    assert sorted(found.view(-1).tolist()) == list(range(96))
    assert found[0].tolist() != list(range(32))


def test_zipf_repeats_rows_unless_they_are_to_be_unique() -> None:
    found = rows_of("zipf", 4, 256, 512, CPU)
    counts = found.view(-1).bincount(minlength=512)
    assert counts.max() > 1024 / 16 > 1024 / 512  # the first of 512 has a sixth of all
    assert 0 <= int(found.min()) <= int(found.max()) < 512
    unique = rows_of("zipf", 4, 256, 512, CPU, unique=True)
    assert all(len(set(of_set)) == 256 for of_set in unique.tolist())
