"""The report of `commlib profile`: figures of graphs and eager calls, table, notes, picture, and Nsight's commands."""

from __future__ import annotations

import csv
import json
import shlex
import stat
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from click.testing import CliRunner

from commlib.cli import main
from commlib.cli.profile.external import External
from commlib.cli.profile.job import Job
from commlib.cli.profile.plot import plot
from commlib.cli.profile.report import ProfileReport
from commlib.cli.profile.view import ProfileView
from commlib.peers.kernels import once
from commlib.peers.kernels.attention import AttentionCase
from commlib.peers.kernels.case import FLOOR, OURS, PEER, Candidate, Case
from commlib.peers.kernels.measure import Group, Line, Settings
from commlib.timing import Measurement

SCHEMA = json.loads((resources.files("commlib.cli.profile") / "schema.json").read_text(encoding="utf-8"))
GPU = torch.device("cuda")


def measurement(us: float, host_us: float | None = None) -> Measurement:
    noise = (0.99, 1.0, 1.01, 1.0, 1.0)
    issue = [] if host_us is None else [host_us * 1e-6 * each for each in noise]
    return Measurement("", False, 96, [us * 1e-6 * each for each in noise], issue)


def line(label: str, role: str, graph_us: float | None, eager_us: float, wrong: int | None = 0) -> Line:
    timed = None if graph_us is None else measurement(graph_us)
    skipped = "" if timed else "cannot be captured"
    return Line(Candidate(label, role=role), [], wrong, skipped, timed, measurement(eager_us, eager_us / 2))


def group(n: int, *extra: Line, **changes: Any) -> Group:
    """Return what a GPU would give: copy 10 µs, ours 12, torch 30 and a wrong one 5."""
    lines = [
        line("commlib", OURS, 12.0 * n, 14.0),
        line("copy", FLOOR, 10.0 * n, 11.0, None),
        line("probe", FLOOR, 6.0 * n, 7.0, None),
        line("torch index_select", PEER, 30.0 * n, 32.0),
        line("triton row", PEER, 15.0 * n, 40.0),
        line("hasty", PEER, 5.0 * n, 6.0, 3),
        Line(Candidate("torch.compile", reason="not asked for"), skipped="not asked for"),
    ]
    case = Case("index", n, 4096, torch.bfloat16, **changes)
    return Group(case, 16384 * n, 240, True, [*lines, *extra])


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ProfileReport:
    monkeypatch.setattr("commlib.cli.profile.job.cold_bytes", lambda device: 120 << 20)
    cases = (Case("index", 1, 4096, torch.bfloat16),)
    others = tmp_path / "others.py"
    others.write_text("def candidates(kernel, case, inputs): ...")
    job = Job(cases, Settings(GPU, others=[External(others)]), 10.0, True)
    return ProfileReport(job, "commlib profile index")


def rows_by_candidate(report: ProfileReport, of_group: Group) -> dict[str, dict[str, Any]]:
    return {row["candidate"]: row for row in report.add(of_group)}


def test_figures_are_of_the_graph_and_eager_calls_stand_beside_them(report: ProfileReport) -> None:
    rows = rows_by_candidate(report, group(2))
    ours = rows["commlib"]
    assert ours["mode"] == "graph"
    assert ours["time_us"]["p50"] == pytest.approx(24.0)
    assert ours["gbps"] == pytest.approx(32768 / 24e-6 / 1e9, rel=1e-4)
    assert ours["of_copy"] == pytest.approx(10 / 12, rel=1e-4)
    assert ours["eager"]["wall_us"]["p50"] == pytest.approx(14.0)
    assert ours["eager"]["host_us"] == pytest.approx(7.0)


def test_the_best_peer_is_right_and_no_floor(report: ProfileReport) -> None:
    rows = rows_by_candidate(report, group(1))
    versus = rows["commlib"]["versus"]
    assert versus["of"] == "triton row"  # not what is wrong, not the copy, not the probe
    assert versus["ratio"] == pytest.approx(1.25, rel=1e-3)
    assert rows["torch index_select"]["versus"]["ratio"] == pytest.approx(2.5, rel=1e-3)
    assert rows["probe"]["versus"]["ratio"] == pytest.approx(0.5, rel=1e-3)


def test_what_cannot_be_captured_keeps_its_eager_times(report: ProfileReport) -> None:
    rows = rows_by_candidate(report, group(1, line("python loop", PEER, None, 90.0)))
    found = rows["python loop"]
    assert (found["time_us"], found["skipped"]) == (None, "cannot be captured")
    assert found["eager"]["wall_us"]["p50"] == pytest.approx(90.0)
    assert found["versus"] is None


@pytest.mark.parametrize("width", [20, 40, 79, 80, 100, 120])
def test_no_line_is_wider_than_the_terminal(report: ProfileReport, width: int) -> None:
    report.add(group(16384, pattern="sequential"))
    report.add(group(16384, pattern="zipf", hot=True))
    report.add(group(10**6, variant="masked"))
    text = ProfileView(report.document(), width).table()
    assert max(map(len, text.splitlines())) <= width
    assert ("pattern   " in text) == (width >= 100)  # what the head says anyway goes first


def test_the_document_holds_the_schema_and_unknown_keys_do_not(report: ProfileReport) -> None:
    report.add(group(1, line("python loop", PEER, None, 90.0)))
    checker = jsonschema.Draft202012Validator(SCHEMA)
    checker.check_schema(SCHEMA)
    found = report.document()
    checker.validate(found)
    assert found["config"]["peers"] == ["others"]  # no paths
    assert found["copy"] == {"gbps": pytest.approx(1.6384), "bytes": 16384}
    assert found["out_of_bounds"] == {"count": 3, "okay": False}
    found["rows"][0]["speed"] = 1
    assert not checker.is_valid(found)


def test_csv_has_all_figures_of_a_row_and_markdown_the_table(report: ProfileReport) -> None:
    report.add(group(1, line("python loop", PEER, None, 90.0)))
    view = ProfileView(report.document(), 80)
    found = list(csv.DictReader(view.render("csv").splitlines()))
    assert [row["candidate"] for row in found] == [row["candidate"] for row in report.rows if row["eager"]]
    assert (found[0]["time_us.p50"], found[0]["versus.of"], found[0]["wrong"]) == ("12.0", "triton row", "0")
    assert found[-1]["time_us.p50"] == ""
    lines = view.render("md").splitlines()
    assert "### index, dim 4096, bfloat16, random, cold, CUDA graph" in lines
    (ours,) = (each for each in lines if "commlib*" in each)
    assert ours.split(" | ")[4:8] == ["12.00", "1.37", "83", "7.00"]


def test_a_terminal_shows_who_wins_what_is_skipped_and_what_is_not_cold(report: ProfileReport) -> None:
    report.add(group(1, line("theirs", PEER, 8.0, 9.0), line("commlib unique", OURS, 9.0, 9.0)))
    report.notes = ["torch.compile: 3 shapes compiled in 4.0 s"]
    text = ProfileView(report.document(), 80).table()
    assert "# theirs is faster than ours: 0.67 at n 1, dim 4096, random, cold" in text
    assert "commlib unique takes less" not in text
    assert "# skipped torch.compile: not asked for" in text
    assert "# torch.compile: 3 shapes compiled in 4.0 s" in text
    assert "# n 1: with short rows, all sets together fit into the cache" in text
    assert "3 FAILED" in text
    (shown,) = (row for row in text.splitlines() if row.startswith("     1 commlib*") and "[" in row)
    assert shown.split()[:7] == ["1", "commlib*", "12.00", "1.37", "83", "7.00", "14.00"]


def test_a_picture_has_latency_and_share_of_each_series(
    report: ProfileReport, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    for n in (1, 64):
        report.add(group(n))
    report.add(group(1, variant="masked"))
    plot(report.document(), tmp_path / "x.svg")
    assert (tmp_path / "x.svg").read_text().startswith("<?xml")
    drawn: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *args, **options: drawn.append(self))
    plot(report.document(), tmp_path / "y.png")
    axes = drawn[0].axes
    assert [axis.get_ylabel() for axis in axes] == 2 * ["latency, µs", "% of copy"]
    lines = {found.get_label(): found for found in axes[1].get_lines()}
    assert list(lines["commlib"].get_ydata()) == pytest.approx([100 * 10 / 12] * 2, rel=1e-3)
    assert "probe" not in lines, "what moves nothing has no share"
    lines = {found.get_label(): found for found in axes[0].get_lines()}
    assert (lines["commlib"].get_linestyle(), lines["probe"].get_linestyle()) == ("-", ":")
    assert lines["triton row"].get_linestyle() == "--"


def test_nothing_measured_is_nothing_to_draw(report: ProfileReport, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nothing to draw"):
        plot(report.document(), tmp_path / "x.png")


CASE = Case("store", 64, 512, torch.bfloat16, "sequential", "fp8")


def test_nsights_commands_look_at_one_call_of_one_kernel() -> None:
    ncu = once.command("ncu", CASE)
    assert ncu[:2] == ["ncu", "--set=full"]
    assert {"--kernel-name=regex:store", "--launch-count=1", "--profile-from-start=off"} < set(ncu)
    assert ncu[ncu.index("commlib") + 1 :] == [
        *("profile", "store", "--dim=512", "--rows=64", "--dtype=bfloat16", "--pattern=sequential", "--fp8", "--once")
    ]
    nsys = once.command("nsys", CASE)
    assert nsys[:2] == ["nsys", "profile"]
    assert "--capture-range=cudaProfilerApi" in nsys
    assert nsys[-8:] == ncu[-8:]


ATTENTION = AttentionCase("attention", 2, 64, torch.float16, "random", "decode fp8", False, 48, 4, 2, 8, True)
OTHERS = [Case("metadata", 3, 8, torch.int32), Case("index", 2, 64, torch.float16), ATTENTION]


@pytest.mark.parametrize("case", [CASE, *OTHERS], ids=str)
def test_the_words_of_one_call_ask_for_its_case(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Case] = []
    monkeypatch.setattr(once, "once", lambda found, device: asked.append(found) or 0)
    result = CliRunner().invoke(main, ["profile", *case.words(), "--once"])
    assert result.exit_code == 0, result.output
    assert asked == [case]


def test_one_call_is_made_without_a_report() -> None:
    result = CliRunner().invoke(main, ["profile", "index", "--once", "-n", "3", "--dim", "64", "--device", "cpu"])
    assert (result.exit_code, result.output) == (0, "")


def test_the_tool_runs_where_it_is_and_is_printed_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["index", "--ncu", "-n", "3", "--dim", "64", "--device", "cpu"]
    monkeypatch.setenv("PATH", str(tmp_path))
    absent = CliRunner().invoke(main, ["profile", *words])
    assert absent.exit_code == 1
    assert "ncu is not here; install NVIDIA Nsight Compute" in absent.stderr
    tool = tmp_path / "ncu"
    tool.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\nexit 3\n')
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    present = CliRunner().invoke(main, ["profile", *words])
    assert present.exit_code == 3
    printed = shlex.split(present.stdout)
    assert printed[1:] == (tmp_path / "asked").read_text().split()
