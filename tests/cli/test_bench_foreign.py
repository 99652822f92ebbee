"""What users of nccl-tests and of OSU's benchmarks type: options that are the same, and errors that name ours."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from commlib.bench.foreign import THEIRS
from commlib.bench.job import Job
from commlib.cli import main
from commlib.cli.bench.command import bench
from commlib.cli.bench.options import read_job

PAGE = Path(__file__).resolve().parents[2] / "docs/from_nccl_tests_and_osu.md"
ROWS = [re.split(r" ?(?<!\\)\| ?", line) for line in PAGE.read_text(encoding="utf-8").splitlines() if line[:1] == "|"]
TYPED = [words for row in ROWS for words in re.findall(r"commlib bench ([^`]+)", row[2])]


def job_of(words: str) -> Job:
    options = bench.make_context("bench", shlex.split(words)).params
    return read_job(options.pop("ops"), options.pop("ranks"), options)


@pytest.mark.parametrize("words", TYPED)
def test_what_the_page_says_to_type_is_understood(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert job_of(words).ops


def test_the_page_has_every_option_that_is_not_ours() -> None:
    theirs = " ".join(row[1] for row in ROWS)
    letters = {name for names in THEIRS for name in names if len(name) == 2} - {"-F", "-y", "-M", "-S"}
    assert [letter for letter in sorted(letters) if letter not in theirs] == []


def test_options_that_mean_the_same_have_the_same_letter() -> None:
    job = job_of("all_reduce -n 2 -b 1K -e 4K -f 2 -d half -w 7 -c 0 -r 1")
    assert job.sizes == (1024, 2048, 4096)
    assert (job.dtypes, job.protocol.warmup, job.protocol.check, job.root) == ((torch.float16,), 7, False, 1)
    assert job_of("all_reduce -c 1").protocol.check
    assert not job_of("all_reduce --no-check -c 1").protocol.check


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("-g 4", "-g is no option here: commlib bench takes one rank for each GPU: -n 4"),
        ("-g8", "commlib bench takes one rank for each GPU: -n 8"),
        ("--ngpus=8", "commlib bench takes one rank for each GPU: -n 8"),
        ("-t", "takes one process for each rank, no threads: -n 2"),
        ("-m 10", "calls are not aggregated"),
        ("-z 1", "calls follow each other without a wait in between"),
        ("-R 2", "plain tensors and symmetric ones have rows of their own"),
        ("-o max", "-o is the file to write here; the reduction is --redop max"),
        ("--datatype half", "the element type is -d half"),
        ("-i 1M", "--sizes 1M,2M,3M"),
        ("-J out.json", "results are written with -o out.json"),
        ("-W 32", "messages in flight are --window 32"),
        ("--nobody", "No such option"),
    ],
)
def test_an_option_of_theirs_is_answered_with_ours(words: str, said: str) -> None:
    result = CliRunner().invoke(main, ["bench", "all_reduce", *words.split()])
    assert result.exit_code == 2
    assert said in result.stderr
