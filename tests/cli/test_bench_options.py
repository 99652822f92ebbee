"""Options of `commlib bench`: sizes, and what users of nccl-tests and OSU type."""

import re
import shlex
from pathlib import Path

import pytest
import torch

from commlib.tools.bench.job import Job, sweep
from commlib.tools.cli import OF_OTHERS
from commlib.tools.cli.bench.command import bench
from commlib.tools.cli.bench.read import read_job
from tests.cli.calls import refuses


def test_a_sweep_ends_with_the_largest_size() -> None:
    assert sweep(8, 64, 2.0) == (8, 16, 32, 64)
    assert sweep(8, 63, 2.0) == (8, 16, 32, 63)


def test_a_size_may_be_rows_times_hidden_of_the_element_type() -> None:
    assert job_of("all_reduce --sizes 16x7168,64K,2X3x4 -d bf16").sizes == (48, 65536, 229376)


PAGE = Path(__file__).resolve().parents[2] / "docs/from_nccl_tests_and_osu.md"
ROWS = [re.split(r" ?(?<!\\)\| ?", line) for line in PAGE.read_text(encoding="utf-8").splitlines() if line[:1] == "|"]
TYPED = [words for row in ROWS for words in re.findall(r"commlib bench ([^`]+)", row[2])]


def job_of(words: str) -> Job:
    options = bench.make_context("bench", shlex.split(words)).params
    return read_job(options.pop("ops"), options.pop("ranks"), options)


def test_names_and_letters_mean_what_they_mean_elsewhere_and_sizes_follow_any_factor() -> None:
    job = job_of("all_reduce -n 2 -b 1K -e 4K -f 2 -d half -w 7 --no-check -r 1")
    assert job.sizes == (1024, 2048, 4096)
    assert (job.dtypes, job.protocol.warmup, job.protocol.check, job.root) == ((torch.float16,), 7, False, 1)
    assert job_of("all_reduce").protocol.check
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
    assert [name for name in OF_OTHERS if len(name) == 2 and name not in theirs] == []


def test_sizes_that_cannot_be_are_refused_before_a_rank_starts() -> None:
    sizes = (
        ("7168xx16", "'7168xx16' is no size; write bytes such as 64K, or 16x7168"),
        ("0x16", "'0x16' has 0 bytes"),
        ("16x7168 -d bf16,f32", "'16x7168' is no size"),
        ("64K -e 1M", "leave -b, -e and -f out"),
    )
    refuses("bench all_reduce -n 2 --sizes", sizes)
