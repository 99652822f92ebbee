"""Renderings of a bench document: the schema holds, every form says the same, and faults of files are named."""

from __future__ import annotations

import csv
import io
import json
import re
from importlib import resources
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest
from click.testing import CliRunner

from commlib.bench.plot import plot
from commlib.bench.rows import KIND
from commlib.cli.bench.notes import closing
from commlib.cli.bench.show import show
from commlib.cli.bench.view import BenchView
from commlib.report import files
from commlib.report.plot import SUFFIXES
from tests.cli.bench_documents import WAYS, document, saved, times

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


def test_every_measured_row_is_shown_in_80_columns_and_the_plans_choice_is_starred() -> None:
    shown = table(document(), 80)
    assert max(map(len, shown)) <= 80
    lines = [line.split() for line in shown if not line.startswith("#")]
    assert len(lines) == 11 * len(document()["config"]["sizes"])  # mpich has no form in place
    starred = {(line[0], name) for line in lines for name in line if name.endswith("*")}
    assert {("8", "shm_oneshot*"), ("32768", "shm_twoshot*"), ("8", "shm_symmetric*")} <= starred
    assert ("8", "shm_twoshot*") not in starred
    assert set(WAYS) <= {name.rstrip("*") for line in lines for name in line}


def test_the_closing_names_what_beat_the_plan_what_was_skipped_and_what_was_wrong() -> None:
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
    found = document(complete=False, ended="interrupted", out_of_bounds={"count": 3, "okay": False})
    assert closing(found)[-1] == "# interrupted: not complete"
    assert "# Out of bounds values : 3 FAILED" in closing(found)
    assert render(document(rows=[], fits=[]), "table", 80)


@pytest.mark.slow
def test_osu_csv_and_markdown_have_every_row() -> None:
    text = render(document(), "osu", 80)
    assert text.count("# commlib Allreduce Latency Test") == 11
    assert "# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations" in text
    row = next(row for row in document()["rows"] if row["size"] == 4096)
    (line,) = [line for line in text.partition("Algorithm: shm_oneshot")[2].splitlines() if line.startswith("4096 ")][
        :1
    ]
    expected = [f"{row['time_us'][name]:.2f}" for name in ("p50", "p0", "p100")]
    assert line.split() == ["4096", *expected, str(row["iterations"] * row["blocks"])]
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
    text = render(document("all_reduce", "broadcast"), "md", 80)
    assert re.findall("^### (.*)", text, re.MULTILINE) == ["all_reduce, float, sum", "broadcast, float, root 0"]
    assert len({line.count("|") for line in text.splitlines() if line.startswith("|")}) == 1
    assert "**`shm_oneshot`**" in text


def test_show_prints_what_the_run_printed_in_every_form_and_of_a_newer_commlib(tmp_path: Path) -> None:
    path = saved(tmp_path, document())
    for form in BenchView.forms:
        result = CliRunner().invoke(show, [str(path), "--format", form], env={"COLUMNS": "80"})
        assert (result.exit_code, result.stdout_bytes.decode()) == (0, render(document(), form, 80) + "\n")
    out = tmp_path / "out.csv"
    assert CliRunner().invoke(show, [str(path), "--format", "csv", "-o", str(out)]).output == ""
    assert out.read_bytes().decode() == render(document(), "csv", 80) + "\n"
    assert KIND.read(saved(tmp_path, render(document(), "json", 80), "again.json")) == document()
    path = saved(tmp_path, changed(document(), more=1))
    assert CliRunner().invoke(show, [str(path)], env={"COLUMNS": "80"}).output == render(document(), "table", 80) + "\n"


WHOLE = json.dumps(document(), indent=1)


def test_a_file_that_cannot_be_rendered_is_named_with_its_fault(tmp_path: Path) -> None:
    for content, said in [
        (WHOLE[: len(WHOLE) // 2], r"ends in line \d+, in the middle"),
        ("", "line 1: not JSON"),
        ('{\n"a": 1,\n oops}', "line 3: not JSON"),
        (json.dumps({"schema": "commlib.plan", "version": 1}), 'its "schema" is \'commlib.plan\', not "commlib.bench"'),
        *((json.dumps(document(rows=rows)), "its rows are not as") for rows in ({}, {"tables": [{"rows": 5}]})),
        (json.dumps(document(version=2)), "has version 2, but this commlib reads version 1: upgrade commlib"),
        (json.dumps(document(rows=[{"op": "all_reduce"}])), r"rows\[0\]: 'size' is a required"),
        (json.dumps(changed(document(), wrong=-1)), r"rows\[0\].wrong: -1 is less than"),
    ]:
        path = saved(tmp_path, content)
        result = CliRunner().invoke(show, [str(path)])
        assert isinstance(result.exception, ValueError)  # the command line makes it one line and exit code 2
        assert re.search(said, str(result.exception))
        assert str(path) in str(result.exception)
        assert result.output == ""
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name, said in (("gone", "No such file"), ("", "Is a directory"), ("binary", "not a text file")):
        with pytest.raises(ValueError, match=said) as error:
            KIND.read(tmp_path / name)
        assert str(tmp_path / name) in str(error.value)
    with pytest.raises(ValueError, match="cannot write"):
        files.write(tmp_path / "gone" / "x", "")


def test_texts_of_a_file_do_not_reach_the_terminal_as_commands(tmp_path: Path) -> None:
    path = saved(tmp_path, document(notes=["\x1b]0;title\x07\x9b2J\u202e"]))
    for form in ("table", "md", "json"):
        said = CliRunner().invoke(show, [str(path), "--format", form], env={"COLUMNS": "80"}).output
        assert said and all(char.isprintable() or char == "\n" for char in said)


@pytest.mark.slow
def test_a_picture_is_written_or_said_to_be_impossible(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for suffix in SUFFIXES:
        path = tmp_path / f"picture{suffix}"
        plot(document("all_reduce", "broadcast"), path)
        if suffix == ".png":
            assert path.read_bytes().startswith(b"\x89PNG")
        else:
            assert ElementTree.parse(path).getroot().tag.endswith("svg")
    for path, found, said in (
        (tmp_path / "x.pdf", document(), "is no .png or .svg file; give it such a name"),
        (tmp_path / "gone" / "x.png", document(), "cannot write .*gone"),
        (tmp_path / "x.png", document(rows=[], fits=[]), "nothing to draw"),
    ):
        with pytest.raises(ValueError, match=said):
            plot(found, path)
    result = CliRunner().invoke(show, [str(saved(tmp_path, document())), "--plot", "x.pdf"])
    assert isinstance(result.exception, ValueError)
    assert result.output == ""  # before anything is printed


def test_show_draws_and_prints_the_collectives_that_are_named(tmp_path: Path) -> None:
    file = str(saved(tmp_path, document("all_reduce", "broadcast")))
    result = CliRunner().invoke(show, [file, "broadcast", "--format", "csv"])
    assert {line.split(",")[0] for line in result.output.splitlines()[1:]} == {"broadcast"}
    result = CliRunner().invoke(show, [file, "gather"])
    assert "there are no rows of gather, but of all_reduce, broadcast" in str(result.exception)
