"""The results that are kept: few files, small, and every document of bench among them can be shown."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from commlib.bench.rows import KIND
from commlib.cli.bench.view import BenchView
from commlib.cli.report.folder import Folder
from commlib.cli.report.pages import PAGE, write_pages
from commlib.report.packed import unpacked

REPORTS = sorted((Path(__file__).resolve().parents[2] / "docs/reports").iterdir())
RESULTS = sorted((Path(__file__).resolve().parents[2] / "benchmarks/results").iterdir())


def test_results_are_few_files_and_small() -> None:
    assert len(RESULTS) <= 18
    assert sum(path.stat().st_size for path in RESULTS) <= 700_000


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.name)
def test_a_file_has_documents_of_one_command_with_rows_and_a_line_for_each(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    documents = unpacked(json.loads(text))
    if not path.name.startswith("checks_"):  # the small documents of several checks
        assert len({document["schema"] for document in documents}) == 1
    assert all(document["rows"] for document in documents)
    assert text.count("\n   [") == sum(len(document["rows"]) for document in documents)
    if documents[0]["schema"] == KIND.name:
        for document in KIND.read_all(path):
            assert "# Out of bounds values : 0 OK" in BenchView(document, 120).table()


@pytest.mark.parametrize("path", REPORTS, ids=lambda path: path.name)
def test_a_report_is_small_and_whole_and_made_again_from_its_documents(path: Path, tmp_path: Path) -> None:
    assert sum(file.stat().st_size for file in path.iterdir()) <= 400_000
    made = Folder(Path(shutil.copytree(path, tmp_path / path.name)))
    assert made.stages and all(map(made.has, made.stages))
    before = {file.name for file in made.path.iterdir()}
    (made.path / PAGE).unlink()
    write_pages(made)
    assert {file.name for file in made.path.iterdir()} == before
