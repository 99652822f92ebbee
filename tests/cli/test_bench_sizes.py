"""`commlib bench --sizes`: what may be named, how it is shown; and `--ncu`, `--nsys`: which call they look at."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from click.testing import CliRunner

from commlib.bench.job import rounded
from commlib.bench.rows import KIND
from commlib.bench.sizes import Shape, read_shapes, sweep
from commlib.cli import main
from commlib.cli.bench.view import BenchView

BF16, F32 = torch.bfloat16, torch.float32
ONE_CALL = ("bench", "all_reduce", "-n", "2", "--sizes", "16x7168:bf16")


def test_a_sweep_ends_with_the_largest_size_where_a_step_meets_it() -> None:
    assert sweep(8, 64, 2.0) == (8, 16, 32, 64)
    assert sweep(8, 63, 2.0) == (8, 16, 32)


def test_shapes_and_bytes_are_read_with_their_types() -> None:
    shapes = read_shapes("16x7168, 64K:bf16,2X3x4:u8", (F32, BF16))
    assert shapes == (
        Shape("16x7168", 16 * 7168, F32),
        Shape("16x7168", 16 * 7168, BF16),
        Shape("", 32768, BF16),
        Shape("2x3x4", 24, torch.uint8),
    )
    assert [shape.num_bytes for shape in shapes] == [458752, 229376, 65536, 24]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("7168xx16", "'7168xx16' is no size; write 16x7168 (rows x hidden), or bytes such as 64K"),
        ("16x", "'16x' is no size"),
        ("many", "'many' is no size"),
        ("8,,16", "'' is no size"),
        ("0x16", "'0x16' has 0 elements"),
        ("0", "'0' has 0 elements"),
        ("1000000x1000000x1000000", "has 1000000000000000000 elements"),
        ("7:bf16", "'7:bf16' is no whole number of bfloat16 elements, 2 bytes each"),
        ("7", "'7' is no whole number of float32 elements, 4 bytes each"),
        ("16x16:bf17", "no element type 'bf17'; there are float64, float32"),
    ],
)
def test_a_size_that_is_none_is_refused_before_a_rank_starts(text: str, said: str) -> None:
    result = CliRunner().invoke(main, ["bench", "all_reduce", "-n", "2", "--sizes", text])
    assert result.exit_code == 2
    assert said in result.stderr


def test_sizes_stand_instead_of_a_range() -> None:
    result = CliRunner().invoke(main, ["bench", "all_reduce", "-n", "2", "--sizes", "64K", "-e", "1M"])
    assert (result.exit_code, "leave -b, -e and -f out" in result.stderr) == (2, True)


def test_rows_show_the_shape_that_was_asked_for(
    bench: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    words = ("--sizes", "6x64,3x5:bf16,1K", "--peers", "none", "--algorithms", "auto", "--time", "0.1", "--iters", "2")
    result = bench("all_reduce", "all_gather", "-n", "2", *words, "-o", str(tmp_path / "a.json"))
    assert (result.returncode, result.stderr) == (0, "")
    document = KIND.read(tmp_path / "a.json")
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
    lines = [line.split()[:2] for line in result.stdout.splitlines() if line[0] != "#"]
    assert ["1536", "6x64"] in lines
    assert ["1024", "-"] in lines
    assert "6x64" in BenchView(document, 200).render("table")
    assert "shape" in BenchView(document).render("csv").partition("\n")[0].split(",")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("all_reduce,broadcast",), "--ncu looks at one call, not at 2 collectives; name one, such as all_reduce"),
        (("all_reduce", "--sizes", "8,16"), "not at 2 sizes; name one, such as --sizes 1M"),
        (("all_reduce", "--sizes", "8", "--dtype", "f32,bf16"), "not at 2 element types"),
        (("all_reduce", "--sizes", "8", "--backend", "shm"), "--backend shm is on the CPU"),
    ],
)
def test_nsight_looks_at_one_call(words: tuple[str, ...], said: str) -> None:
    result = CliRunner().invoke(main, ["bench", *words, "-n", "2", "--ncu"])
    assert result.exit_code == 2
    assert said in result.stderr


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


def test_without_gpus_one_call_says_what_looks_at_cpus() -> None:
    result = CliRunner().invoke(main, ["bench", "all_reduce", "--backend", "shm", "--sizes", "64", "--once"])
    assert result.exit_code == 1
    assert "the ranks use cpu; use `perf record` there" in result.stderr
    assert not result.stdout


def test_sizes_that_are_no_whole_number_of_elements_are_measured_in_whole_ones_and_said() -> None:
    types = (torch.float32, torch.bfloat16, torch.uint8)
    assert rounded(SimpleNamespace(dtypes=types, sizes=(7, 14, 28), shapes=())) == [  # type: ignore[arg-type]
        "sizes are whole elements of float32: 4 B in place of 7, 12 B in place of 14",
        "sizes are whole elements of bfloat16: 6 B in place of 7",
    ]
    assert rounded(SimpleNamespace(dtypes=types, sizes=(8,), shapes=())) == []  # type: ignore[arg-type]
