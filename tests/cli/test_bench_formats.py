"""Renderings of a bench document: the schema holds, lines fit, every form says the same, faults of files are named."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner

from commlib.bench.rows import KIND
from commlib.cli.bench.notes import closing, opening
from commlib.cli.bench.show import show
from commlib.cli.bench.view import BenchView
from commlib.report import files
from tests.cli.bench_documents import WAYS, config, document, saved, times

SCHEMA = json.loads((resources.files("commlib.bench") / "schema.json").read_text(encoding="utf-8"))


def changed(found: dict[str, Any], **figures: Any) -> dict[str, Any]:
    """Return the document with figures of every measured row replaced."""
    found["rows"] = [row if "skipped" in row else {**row, **figures} for row in found["rows"]]
    return found


def render(found: dict[str, Any], form: str, width: int) -> str:
    return BenchView(found, width).render(form)


def table(found: dict[str, Any], width: int) -> list[str]:
    return render(found, "table", width).splitlines()


def test_documents_are_valid_by_the_schema_and_unknown_keys_of_rows_are_not() -> None:
    checker = jsonschema.Draft202012Validator(SCHEMA)
    checker.check_schema(SCHEMA)
    for found in (document(), document("broadcast", baseline=None), document(rows=[], fits=[])):
        checker.validate(found)
    assert not checker.is_valid(changed(document(), vs_torch=1.0))
    assert not checker.is_valid(changed(document(), time_us={"p50": 1.0}))


@pytest.mark.parametrize("width", [20, 40, 60, 79, 80, 100, 119, 120, 130, 131, 200])
@pytest.mark.parametrize("baseline", ["torch", "a_library_with_a_long_name", None])
def test_no_line_is_wider_than_the_terminal(width: int, baseline: str | None) -> None:
    found = document("all_reduce", "broadcast", baseline=None)
    found["config"]["baseline"] = baseline
    huge = {"over": "torch", "ratio": 12345.6, "low": 11111.1, "high": 23456.7}
    rows = [{**row, "type": "float8_e5m2fnuz", "size": row["size"] << 40} for row in found["rows"]]
    found["rows"] += changed({"rows": rows}, time_us=times(98765432.1), wrong=1 << 40, busbw=9876543.2, speedup=huge)[
        "rows"
    ]
    for form in ("table", "osu"):
        assert max(map(len, render(found, form, width).splitlines())) <= width


@pytest.mark.parametrize(
    ("width", "columns"),
    [
        (80, "size algorithm form time busbw %lim #wrong speed-up"),
        (120, "size count type redop root algorithm time algbw busbw time algbw busbw #wrong %lim speed-up"),
        (140, "size count type redop root algorithm" + 2 * " time algbw busbw #wrong" + " %lim speed-up"),
    ],
)
def test_the_columns_are_nccl_tests_and_ours(width: int, columns: str) -> None:
    assert re.search("# +" + " +".join(columns.split()), "\n".join(table(document(), width)))


@pytest.mark.parametrize("width", [80, 140, 160])
def test_what_an_eager_call_takes_the_host_has_a_column_on_gpus(width: int) -> None:
    found = changed(document(), host_us=3.61)
    assert " host " not in "\n".join(table(found, width))
    found["config"]["backend"] = "nccl"
    assert (" host " in "\n".join(table(found, width))) == (width != 80)  # it goes where there is no room
    assert (" 3.61 " in "\n".join(table(found, width))) == (width != 80)
    found["config"]["mode"] = "graph"
    assert " host " not in "\n".join(table(found, width))


@pytest.mark.parametrize("width", [80, 120, 140])
def test_every_measured_row_is_shown_and_the_plans_choice_is_starred(width: int) -> None:
    lines = [line.split() for line in table(document(), width) if not line.startswith("#")]
    per_call = 11 if width == 80 else 6  # mpich has no form in place
    assert len(lines) == per_call * len(document()["config"]["sizes"])
    starred = {(line[0], name) for line in lines for name in line if name.endswith("*")}
    assert {("8", "shm_oneshot*"), ("32768", "shm_twoshot*"), ("8", "shm_symmetric*")} <= starred
    assert ("8", "shm_twoshot*") not in starred
    assert set(WAYS) <= {name.rstrip("*") for line in lines for name in line}


def test_large_sizes_are_shortened_before_a_column_is_lost() -> None:
    for sizes in ((8, 1 << 28), (8, 1 << 40)):
        lines = table(document(sizes=sizes), 120)
        assert re.search("#wrong +%lim +speed-up", "\n".join(lines))
    assert [line.split()[:2] for line in lines if "shm_oneshot" in line and line[0] != "#"] == [
        ["8", "2"],
        ["1024G", "256G"],
    ]


def test_the_speed_up_has_its_interval() -> None:
    against = {"over": "torch", "ratio": 2.31, "low": 2.2, "high": 2.4}
    found = changed(document(), speedup=against)
    assert " 2.31 [2.20–2.40]" in table(found, 80)[-30]
    assert "2.31x ±0.11" in "\n".join(table(found, 120))
    assert "x torch" in "\n".join(table(found, 120))
    assert "speed-up" not in "\n".join(table(document(baseline=None), 120))


def test_rows_as_they_come_give_the_lines_of_the_whole_document() -> None:
    found = document()
    whole, live = table(found, 80), BenchView(found, 80)
    for size in found["config"]["sizes"]:
        call = [row for row in found["rows"] if row["size"] == size]
        assert set(live.body(call)) <= set(whole)
    assert live.head(found["rows"])[1:] == whole[whole.index("# all_reduce, float, sum") :][:3]


def test_the_opening_says_what_is_measured_and_where() -> None:
    found = document()
    del found["rows"]
    head = "\n".join(opening(found))
    for word in ("2 ranks on shm", "Linux", "torch 2.13.0", "checked", "median", "plan 0123456789ab", "7.50 GB/s"):
        assert word in head
    assert "# skipped: band of float32 is not defined" in head
    found["fingerprint"] |= {"gpu": "A GPU", "gpus": 2, "driver": "580.1", "nccl": "2.28.9", "cuda": None}
    found["limit"] = {"busbw": None, "latency_us": None, "what": "not measured"}
    assert "# 2 x A GPU, driver 580.1, NCCL 2.28.9" in opening(found)
    assert "# limit: not measured" in opening(found)
    found["config"]["mode"] = "graph"
    assert "of replayed CUDA graphs" in "\n".join(opening(found))


def test_the_closing_explains_the_plan_names_what_beat_it_and_what_was_skipped() -> None:
    found = document()
    for row in found["rows"]:
        if row["algorithm"] == "lsa_ll128_exchange" and row["size"] == 64:
            row["time_us"] = times(0.5)
    text = "\n".join(closing(found))
    assert "# plan, plain tensors: shm_oneshot at 8–4K (rules[0][0]); shm_twoshot at 32K–16M (rules[0][1])" in text
    assert re.search(
        r"# faster here than the plan's shm_oneshot: lsa_ll128_exchange, 1\.\d\dx at 64$", text, re.MULTILINE
    )
    assert "# skipped mpich in place: MPICH has no in-place form of it" in text
    assert re.search(r"shm_oneshot +0\.90 us +2\.40 GB/s +2\.11K +4%", text)
    assert closing(found)[-2:] == ["# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 1.234 (torch 0.345)"]


def test_a_run_that_ended_early_or_was_wrong_says_so() -> None:
    found = document(complete=False, ended="interrupted", out_of_bounds={"count": 3, "okay": False})
    assert closing(found)[-1] == "# interrupted: not complete"
    assert "# Out of bounds values : 3 FAILED" in closing(found)
    assert render(document(rows=[], fits=[]), "table", 80)


def test_osu_has_a_table_for_each_algorithm_and_form() -> None:
    text = render(document(), "osu", 80)
    assert text.count("# commlib Allreduce Latency Test") == 11
    assert "# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations" in text
    row = next(row for row in document()["rows"] if row["size"] == 4096)
    (line,) = [line for line in text.partition("Algorithm: shm_oneshot")[2].splitlines() if line.startswith("4096 ")][
        :1
    ]
    expected = [f"{row['time_us'][name]:.2f}" for name in ("p50", "p0", "p100")]
    assert line.split() == ["4096", *expected, str(row["iterations"] * row["blocks"])]


def test_csv_has_a_line_for_each_row_and_nothing_for_null() -> None:
    found = document("broadcast")
    found["rows"] = [{**row, "why": "one\n  two" if row["chosen"] else None} for row in found["rows"]]
    text = render(found, "csv", 80)
    assert text.count("\r\n") == len(found["rows"])
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    assert None not in rows[0]
    assert (rows[0]["why"], text.count("\n")) == ("one two", len(found["rows"]))
    for line, row in zip(rows, found["rows"], strict=True):
        assert (line["redop"], line["size"], line["in_place"]) == ("", str(row["size"]), str(row["in_place"]).lower())
        assert line["skipped"] == row.get("skipped", "")
        assert line["p50_us"] == ("" if "skipped" in row else str(row["time_us"]["p50"]))


def test_markdown_has_a_table_for_each_series_with_as_many_cells_in_each_line() -> None:
    text = render(document("all_reduce", "broadcast"), "md", 80)
    assert re.findall("^### (.*)", text, re.MULTILINE) == ["all_reduce, float, sum", "broadcast, float, root 0"]
    assert len({line.count("|") for line in text.splitlines() if line.startswith("|")}) == 1
    assert "**`shm_oneshot`**" in text


def test_show_prints_what_the_run_printed_in_every_form(tmp_path: Path) -> None:
    path = saved(tmp_path, document())
    for form in BenchView.forms:
        result = CliRunner().invoke(show, [str(path), "--format", form], env={"COLUMNS": "80"})
        assert (result.exit_code, result.stdout_bytes.decode()) == (0, render(document(), form, 80) + "\n")
    out = tmp_path / "out.csv"
    assert CliRunner().invoke(show, [str(path), "--format", "csv", "-o", str(out)]).output == ""
    assert out.read_bytes().decode() == render(document(), "csv", 80) + "\n"
    assert KIND.read(saved(tmp_path, render(document(), "json", 80), "again.json")) == document()


WHOLE = json.dumps(document(), indent=1)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (WHOLE[: len(WHOLE) // 2], r"ends in line \d+, in the middle"),
        (WHOLE[: WHOLE.index("commlib.bench") + 4], "ends in line 2, in the middle"),
        ("", "line 1: not JSON"),
        ("hello", "line 1: not JSON"),
        (WHOLE.rstrip("}\n "), r"ends in line \d+, in the middle"),
        ('{\n"a": 1,\n oops}', "line 3: not JSON"),
        ("[1, 2]", 'its "schema" is a list, not "commlib.bench"'),
        (json.dumps({"schema": "commlib.plan", "version": 1}), 'its "schema" is \'commlib.plan\', not "commlib.bench"'),
        (json.dumps(document(average_bus_bandwidth={"plan": 10**400})), "a whole number has 401 digits"),
        *((json.dumps(document(rows=rows)), "its rows are not as") for rows in ({}, {"tables": [{"rows": 5}]})),
        (json.dumps(document(version=2)), "has version 2, but this commlib reads version 1: upgrade commlib"),
        (json.dumps(document(version="x")), "has version 'x', but this commlib reads version 1: measure again"),
        (json.dumps({"schema": "commlib.bench", "version": 1}), "the document: 'command' is a required"),
        (json.dumps(document(rows=[{"op": "all_reduce"}])), r"rows\[0\]: 'size' is a required"),
        (json.dumps(document(rows=[5])), r"rows\[0\]: 5 is not of type 'object'"),
        (
            json.dumps(document(limit={"busbw": "much", "latency_us": None, "what": ""})),
            "limit.busbw: 'much' is not of",
        ),
        (json.dumps(changed(document(), time_us={"p50": 1})), r"rows\[0\].time_us: 'p0' is a required"),
        (json.dumps(changed(document(), wrong=-1)), r"rows\[0\].wrong: -1 is less than"),
        (json.dumps(document(config={**config((8,), None), "blocks": [5]})), r"config.blocks: \[5\] is too short"),
        (
            json.dumps(document(config={**config((8,), None), "mode": "warp"})),
            "config.mode: 'warp' is not one of",
        ),
    ],
)
def test_a_file_that_cannot_be_rendered_is_named_with_its_fault(tmp_path: Path, content: str, said: str) -> None:
    path = saved(tmp_path, content)
    result = CliRunner().invoke(show, [str(path)])
    assert isinstance(result.exception, ValueError)  # the command line makes it one line and exit code 2
    assert re.search(said, str(result.exception))
    assert str(path) in str(result.exception)
    assert result.output == ""


def test_texts_of_a_file_do_not_reach_the_terminal_as_commands(tmp_path: Path) -> None:
    path = saved(tmp_path, document(notes=["\x1b]0;title\x07\x9b2J\u202e"]))
    for form in ("table", "md", "json"):
        said = CliRunner().invoke(show, [str(path), "--format", form], env={"COLUMNS": "80"}).output
        assert said and all(char.isprintable() or char == "\n" for char in said)


def test_a_file_that_is_missing_or_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name, said in (("gone", "No such file"), ("", "Is a directory"), ("binary", "not a text file")):
        with pytest.raises(ValueError, match=said) as error:
            KIND.read(tmp_path / name)
        assert str(tmp_path / name) in str(error.value)
    with pytest.raises(ValueError, match="cannot write"):
        files.write(tmp_path / "gone" / "x", "")


def test_what_a_newer_commlib_adds_to_rows_does_no_harm(tmp_path: Path) -> None:
    path = saved(tmp_path, changed(document(), more=1))
    assert CliRunner().invoke(show, [str(path)], env={"COLUMNS": "80"}).output == render(document(), "table", 80) + "\n"


@pytest.mark.parametrize("module", ["cli.bench.show", "cli.bench.compare", "bench.plot"])
def test_rendering_loads_nothing_heavy(module: str) -> None:
    code = f"import sys, commlib.{module}; print(sorted({{'torch', 'numpy', 'matplotlib'}} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
