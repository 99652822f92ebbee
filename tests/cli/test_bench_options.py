"""Options of `commlib bench`: sizes, windows, overlap, tools of Nsight, and what users of nccl-tests and OSU type."""

import re
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from commlib.collectives import Call
from commlib.collectives.reference import ordered
from commlib.tools.bench import messages
from commlib.tools.bench.job import Job, Shape, read_shapes, rounded, sweep
from commlib.tools.bench.messages import Overlapped, Window
from commlib.tools.bench.result import KIND
from commlib.tools.bench.view import BenchView
from commlib.tools.cli import main
from commlib.tools.cli.bench.command import bench
from commlib.tools.cli.bench.foreign import OPTIONS
from commlib.tools.cli.bench.read import read_job
from commlib.tools.timing import Candidate, Measurement, Protocol
from commlib.tools.timing.candidate import Truth
from tests.cli.calls import Run, refuses

QUICK = ("--time", "0.1", "--iters", "1")
BF16, F32 = torch.bfloat16, torch.float32
ONE_CALL = ("bench", "all_reduce", "-n", "2", "--sizes", "16x7168:bf16")


def test_a_sweep_ends_with_the_largest_size() -> None:
    assert sweep(8, 64, 2.0) == (8, 16, 32, 64)
    assert sweep(8, 63, 2.0) == (8, 16, 32, 63)


def test_shapes_and_bytes_are_read_with_their_types_and_rounded_to_whole_elements() -> None:
    shapes = read_shapes("16x7168, 64K:bf16,2X3x4:u8", (F32, BF16))
    assert shapes == (
        Shape("16x7168", 16 * 7168, F32),
        Shape("16x7168", 16 * 7168, BF16),
        Shape("", 32768, BF16),
        Shape("2x3x4", 24, torch.uint8),
    )
    assert [shape.num_bytes for shape in shapes] == [458752, 229376, 65536, 24]
    types = (torch.float32, torch.bfloat16, torch.uint8)
    assert rounded(SimpleNamespace(dtypes=types, sizes=(7, 14, 28), shapes=())) == [  # type: ignore[arg-type]
        "sizes are whole elements of float32: 4 B in place of 7, 12 B in place of 14",
        "sizes are whole elements of bfloat16: 6 B in place of 7",
    ]
    assert rounded(SimpleNamespace(dtypes=types, sizes=(8,), shapes=())) == []  # type: ignore[arg-type]


@pytest.mark.slow
def test_rows_show_the_shape_that_was_asked_for(command: Run, tmp_path: Path) -> None:
    words = ("all_reduce,all_gather", "--sizes", "6x64,3x5:bf16,1K", "--peers", "none", "--algorithms", "auto")
    document = measured(command, tmp_path / "a.json", *words)
    found = {(row["op"], row["type"], row["size"], row.get("shape")) for row in document["rows"]}
    assert found == {
        ("all_reduce", "float32", 1024, None),
        ("all_reduce", "float32", 1536, "6x64"),
        ("all_reduce", "bfloat16", 30, "3x5"),
        ("all_gather", "float32", 1024, None),
        ("all_gather", "float32", 1536, "6x64"),
        ("all_gather", "bfloat16", 28, "3x5"),  # seven elements of each of two ranks
    }
    assert document["config"]["shapes"] == ["6x64", "3x5", ""]


@pytest.mark.slow
def test_nsights_commands_start_the_ranks_of_the_same_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    absent = CliRunner().invoke(main, [*ONE_CALL, "--nsys"])
    assert absent.exit_code == 1
    assert "nsys is not here; install NVIDIA Nsight Systems" in absent.stderr
    tool = tmp_path / "ncu"
    tool.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\nexit 3\n')
    tool.chmod(0o755)
    present = CliRunner().invoke(main, [*ONE_CALL, "--ncu", "--algorithms", "lsa_oneshot"])
    assert present.exit_code == 3
    asked = shlex.split(present.stdout)[1:]
    assert asked == (tmp_path / "asked").read_text().split()
    assert {"--profile-from-start=off", "--replay-mode=application", "--target-processes=all"} < set(asked)
    assert asked[asked.index("commlib") + 1 :] == [*ONE_CALL, "--algorithms", "lsa_oneshot", "--once"]


PAGE = Path(__file__).resolve().parents[2] / "docs/from_nccl_tests_and_osu.md"
ROWS = [re.split(r" ?(?<!\\)\| ?", line) for line in PAGE.read_text(encoding="utf-8").splitlines() if line[:1] == "|"]
TYPED = [words for row in ROWS for words in re.findall(r"commlib bench ([^`]+)", row[2])]


def job_of(words: str) -> Job:
    options = bench.make_context("bench", shlex.split(words)).params
    return read_job(options.pop("ops"), options.pop("ranks"), options)


def test_names_and_letters_mean_what_they_mean_elsewhere_and_sizes_follow_any_factor() -> None:
    job = job_of("all_reduce -n 2 -b 1K -e 4K -f 2 -d half -w 7 -c 0 -r 1")
    assert job.sizes == (1024, 2048, 4096)
    assert (job.dtypes, job.protocol.warmup, job.protocol.check, job.root) == ((torch.float16,), 7, False, 1)
    assert job_of("all_reduce -c 1").protocol.check
    assert not job_of("all_reduce --no-check -c 1").protocol.check
    assert [job_of(f"barrier --time {time}").seconds for time in ("5", "5s", "2m", "0.5")] == [5, 5, 120, 0.5]
    assert [max(job_of(f"all_reduce {words}").sizes) >> 20 for words in ("", "-e 64M -f 9", "--time 3")] == [64, 64, 8]
    job = job_of("all_reduce,broadcast barrier --dtype f32,bf16,float32,fp8 --redop all --peers none")
    assert job.ops == ("all_reduce", "broadcast", "barrier")
    assert job.dtypes == (torch.float32, torch.bfloat16, torch.float8_e4m3fn)
    assert (len(job.redops), job.peers) == (8, ())
    assert job_of("barrier -b 8 -e 64 -f 1.5").sizes == (8, 12, 18, 27, 40, 61, 64)


def test_what_the_page_says_to_type_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert all(job_of(words).ops for words in TYPED)
    theirs = " ".join(row[1] for row in ROWS)
    letters = {name for names in OPTIONS for name in names if len(name) == 2} - {"-F", "-y", "-M", "-S"}
    assert [letter for letter in sorted(letters) if letter not in theirs] == []


def measured(command: Run, path: Path, *words: str) -> dict[str, Any]:
    result = command("bench", "-n", "2", *QUICK, *words, "-o", str(path))
    assert (result.returncode, result.stderr) == (0, "")
    return KIND.read(path)


@pytest.mark.slow
def test_a_window_of_messages_gives_bandwidth_and_rate(command: Run, tmp_path: Path) -> None:
    words = ("send_recv", "--peers", "torch", "--window", "3", "--sizes", "8,4K")
    document = measured(command, tmp_path / "a.json", *words)
    rows = document["rows"]
    assert [row["algorithm"] for row in rows] == 2 * ["shm_mailbox", "shm_mailbox sync", "torch"]
    for row in rows:
        assert (row["window"], row["pairs"], row["wrong"], row["in_place"]) == (3, False, 0, False)
        assert row["messages_s"] == pytest.approx(3 * 2 / row["time_us"]["p50"] * 1e6, rel=1e-3)
        assert row["algbw"] == pytest.approx(row["messages_s"] * row["size"] / 1e9, rel=1e-2, abs=1e-5)
        assert row["busbw"] == pytest.approx(row["algbw"] / 2, rel=1e-3, abs=1e-5)
    assert "# commlib Send_recv Bandwidth Test" in BenchView(document, 200).render("osu")


def test_messages_go_to_their_partners_and_one_in_anothers_place_is_wrong() -> None:
    window = Window(3, pairs=True)
    collective, call = window.collective(), Call(1, 2, 5, torch.float32)
    assert [collective.shapes(Call(rank, 2, 5, torch.float32)) for rank in (0, 1)] == [(15, 0), (0, 15)]
    assert collective.num_bytes(call) == 20
    truth = Truth(collective, call, ordered)
    sent = truth.expected
    out, nothing = torch.empty(15), torch.empty(0)
    assert truth.wrong(nothing, out, lambda: out.copy_(sent)) == 0
    assert truth.wrong(nothing, out, lambda: out.copy_(sent.roll(5))) > 0
    assert truth.wrong(nothing, out, lambda: out[:10].copy_(sent[:10])) == 5
    for window, ranks, partners in [
        (Window(1, pairs=True), 4, [(2, None), (3, None), (None, 0), (None, 1)]),
        (Window(1), 3, [(1, 2), (2, 0), (0, 1)]),
    ]:
        assert [window.peers(rank, ranks) for rank in range(ranks)] == partners
        senders = sum(after is not None for after, _ in partners)
        assert (window.senders(ranks), window.figures(0.5, ranks)["messages_s"]) == (senders, 2.0 * senders)


def test_the_overlap_is_the_part_of_the_call_that_did_not_make_computing_longer() -> None:
    for both_us, share in [(10.0, 1.0), (15.0, 0.5), (20.0, 0.0), (40.0, 0.0), (8.0, 1.0)]:
        found = Overlapped("x", False, times_s=[10e-6], compute_s=10e-6, both_s=both_us * 1e-6)
        assert found.overlap().share == pytest.approx(share)


def test_values_that_are_wrong_beside_computing_count_too(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = iter([[None], [0, None, 3]])  # wrong elements: the call before; then the call, the work, both
    of_run = lambda wrong: Measurement("x", False, times_s=[1e-6], wrong=wrong)  # noqa: E731
    monkeypatch.setattr(messages, "measure", lambda *given: list(map(of_run, next(runs))))
    given: Any = None, (None, None), [Candidate("x", lambda *given: None)], Protocol(), SimpleNamespace(lasting=print)
    assert [found.wrong for found in messages.measure_overlap(*given)] == [3]


def test_sizes_that_cannot_be_are_refused_before_a_rank_starts() -> None:
    sizes = (
        ("7168xx16", "'7168xx16' is no size; write 16x7168"),
        ("0x16", "'0x16' has 0 elements"),
        ("7:bf16", "'7:bf16' is no whole number of bfloat16 elements, 2 bytes each"),
        ("64K -e 1M", "leave -b, -e and -f out"),
        ("8,16 --ncu", "not at 2 sizes; name one, such as --sizes 1M"),
        ("8 --backend shm --ncu", "--backend shm is on the CPU"),
    )
    refuses("bench all_reduce -n 2 --sizes", sizes)
