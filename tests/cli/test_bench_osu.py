"""`commlib bench send_recv --window --pairs` and `--overlap`: what is in flight, which figures follow, the refusals."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from commlib.bench.overlap import Overlapped
from commlib.bench.rows import KIND
from commlib.bench.window import Window
from commlib.cli import main
from commlib.cli.bench.view import BenchView
from commlib.collectives import Call
from commlib.collectives.reference import ordered
from commlib.timing.truth import Truth

Bench = Callable[..., subprocess.CompletedProcess[str]]
QUICK = ("--time", "0.1", "--iters", "1")


def measured(bench: Bench, path: Path, *words: str) -> tuple[dict[str, Any], str]:
    result = bench("-n", "2", *QUICK, *words, "-o", str(path), width=110)
    assert (result.returncode, result.stderr) == (0, "")
    return KIND.read(path), result.stdout


@pytest.mark.parametrize(("pairs", "senders"), [(True, 1), (False, 2)])
def test_a_window_of_messages_gives_bandwidth_and_rate(bench: Bench, tmp_path: Path, pairs: bool, senders: int) -> None:
    words = ("send_recv", "--peers", "torch", "--window", "3", *["--pairs"] * pairs, "--sizes", "8,4K")
    document, table = measured(bench, tmp_path / "a.json", *words)
    rows = document["rows"]
    assert [row["algorithm"] for row in rows] == 2 * ["shm_mailbox", "shm_mailbox sync", "torch"]
    for row in rows:
        assert (row["window"], row["pairs"], row["wrong"], row["in_place"]) == (3, pairs, 0, False)
        assert row["messages_s"] == pytest.approx(3 * senders / row["time_us"]["p50"] * 1e6, rel=1e-3)
        assert row["algbw"] == pytest.approx(row["messages_s"] * row["size"] / 1e9, rel=1e-2, abs=1e-5)
        assert row["busbw"] == pytest.approx(row["algbw"] / senders, rel=1e-3, abs=1e-5)
    assert (document["config"]["window"], document["config"]["pairs"], document["fits"]) == (3, pairs, [])
    assert "3 messages in flight" in table
    assert "msg/s" in table
    osu = BenchView(document, 200).render("osu")
    assert "# commlib Send_recv Bandwidth Test" in osu
    assert "MB/s        Messages/s" in osu


def test_a_message_in_anothers_place_is_wrong() -> None:
    window = Window(3, pairs=True)
    collective, call = window.collective(), Call(1, 2, 5, torch.float32)
    assert [collective.shapes(Call(rank, 2, 5, torch.float32)) for rank in (0, 1)] == [(15, 0), (0, 15)]
    assert collective.num_bytes(call) == 20
    truth = Truth(collective, call, ordered)
    sent = truth.expected
    assert sent is not None
    out, nothing = torch.empty(15), torch.empty(0)
    assert truth.wrong(nothing, out, lambda: out.copy_(sent)) == 0
    assert truth.wrong(nothing, out, lambda: out.copy_(sent.roll(5))) > 0
    assert truth.wrong(nothing, out, lambda: out[:10].copy_(sent[:10])) == 5


@pytest.mark.parametrize(
    ("window", "ranks", "partners"),
    [
        (Window(1, pairs=True), 4, [(2, None), (3, None), (None, 0), (None, 1)]),
        (Window(1), 3, [(1, 2), (2, 0), (0, 1)]),
    ],
)
def test_pairs_go_from_the_lower_half_to_the_upper_half_and_others_round_the_ring(
    window: Window, ranks: int, partners: list[tuple[int | None, int | None]]
) -> None:
    assert [window.peers(rank, ranks) for rank in range(ranks)] == partners
    assert window.senders(ranks) == sum(after is not None for after, _ in partners)


@pytest.mark.parametrize(
    ("words", "algorithms"),
    [
        ("all_reduce --in-place in --peers torch --algorithms shm_oneshot", ["shm_oneshot", "torch"]),
        ("barrier --backend torch --peers none", ["torch_direct"]),
    ],
)
def test_overlap_shows_the_call_alone_computing_alone_and_both(
    bench: Bench, tmp_path: Path, words: str, algorithms: list[str]
) -> None:
    document, table = measured(bench, tmp_path / "a.json", *words.split(), "--overlap", "--sizes", "4K")
    rows = [row for row in document["rows"] if "skipped" not in row]
    assert [row["algorithm"] for row in rows] == algorithms
    for row in rows:
        beside, alone = row["overlap"], row["time_us"]["p50"]
        hidden = 1 - (beside["both_us"] - beside["compute_us"]) / alone
        assert beside["share"] == pytest.approx(min(max(hidden, 0.0), 1.0), abs=1e-3)
        assert not row["wrong"]
    assert "overlap: time is that of the asynchronous call" in table
    assert "Pure Comm.(us)" in BenchView(document, 200).render("osu")


@pytest.mark.parametrize(("both_us", "share"), [(10.0, 1.0), (15.0, 0.5), (20.0, 0.0), (40.0, 0.0), (8.0, 1.0)])
def test_the_overlap_is_the_part_of_the_call_that_did_not_make_computing_longer(both_us: float, share: float) -> None:
    found = Overlapped("x", False, times_s=[10e-6], compute_s=10e-6, both_s=both_us * 1e-6)
    assert found.figures()["overlap"]["share"] == pytest.approx(share)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("all_reduce --window 64", "--window is of send_recv alone: commlib bench send_recv --window 64"),
        ("--pairs", "--pairs is of send_recv alone: commlib bench send_recv --pairs"),
        ("send_recv --window 4 --overlap", "leave --overlap out"),
        ("send_recv --window 4 --pairs -n 3", "--pairs needs an even number of ranks, not 3"),
        ("send_recv --window 4 -n 1", "--window needs ranks that send to each other: -n 2"),
        ("send_recv --pairs", "--pairs needs an even number of ranks, not 1"),  # one process alone
    ],
)
def test_what_no_window_and_no_overlap_can_be_of_is_refused(words: str, said: str) -> None:
    result = CliRunner().invoke(main, ["bench", *words.split()])
    assert result.exit_code == 2
    assert said in result.stderr
