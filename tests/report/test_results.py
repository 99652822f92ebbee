"""The results that are kept can be shown, and every number of the README's table is theirs."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from commlib.bench.rows import KIND, measured, median_us, rivals
from commlib.cli.bench.view import BenchView
from commlib.cli.report.folder import Folder
from commlib.cli.report.pages import PAGE, write_pages
from commlib.report.document import Row
from commlib.report.packed import unpacked

ROOT = Path(__file__).resolve().parents[2]
REPORTS = sorted((ROOT / "docs/reports").iterdir())
RESULTS = sorted((ROOT / "benchmarks/results").iterdir())
UNITS = {"KiB": 10, "MiB": 20}
# Which part of the file a pair of columns is, and the labels that its names of libraries stand for.
PARTS = {"2": 2, "4": -1}
LABELS = {"NCCL windows": "nccl_symmetric", "torch symmetric": "symm_", "FlashInfer": "flashinfer", "SGLang": "sglang"}


def test_a_file_has_documents_with_rows_and_a_line_for_each_and_right_values() -> None:
    for path in RESULTS:
        text = path.read_text(encoding="utf-8")
        documents = unpacked(json.loads(text))
        assert all(document["rows"] for document in documents), path
        assert text.count("\n   [") == sum(len(document["rows"]) for document in documents), path
        if documents[0]["schema"] == KIND.name:
            tables = [BenchView(document, 120).table() for document in KIND.read_all(path)]
            assert all("# Out of bounds values : 0 OK" in table for table in tables), path


@pytest.mark.parametrize("path", REPORTS, ids=lambda path: path.name)
def test_a_report_is_small_and_whole_and_made_again_from_its_documents(path: Path, tmp_path: Path) -> None:
    assert sum(file.stat().st_size for file in path.iterdir()) <= 400_000
    made = Folder(Path(shutil.copytree(path, tmp_path / path.name)))
    assert made.stages and all(map(made.has, made.stages))
    before = {file.name for file in made.path.iterdir()}
    (made.path / PAGE).unlink()
    write_pages(made)
    assert {file.name for file in made.path.iterdir()} == before


def table() -> list[list[str]]:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    return [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]


def cells() -> list[tuple[str, str, str, str, str]]:
    head, *rows = [row for row in table() if len(row) == 7]
    gpus = [re.match(r"(\d) × H100", head[at])[1] for at in (1, 4)]
    return [(size, gpus[half], *rest[3 * half : 3 * half + 3]) for size, *rest in rows for half in (0, 1)]


def rows_of(gpus: str, size: str) -> list[Row]:
    documents = unpacked(json.loads((ROOT / "benchmarks/results/bench_h100.json").read_text(encoding="utf-8")))
    document = documents[PARTS[gpus]]
    assert document["config"]["ranks"] == int(gpus)
    number, unit = size.split()
    wanted = int(number) << UNITS[unit]
    return [row for row in measured(document["rows"]) if (row["op"], row["size"]) == ("all_reduce", wanted)]


def about(value: float, text: str) -> bool:
    return abs(value - float(text)) <= 0.5 * 10 ** -len(text.partition(".")[2]) + 1e-9


@pytest.mark.parametrize(("size", "gpus", "ours", "other", "ratio"), cells())
def test_a_line_of_the_table_is_of_the_results(size: str, gpus: str, ours: str, other: str, ratio: str) -> None:
    rows = rows_of(gpus, size)
    chosen = [row for row in rows if row["ours"] and row["chosen"] and row["placement"] == "plain"]
    plan = median_us(min(chosen, key=lambda row: row["in_place"]))  # out of place, where it was measured
    best = min(rivals(rows), key=median_us)
    name, _, time = other.rpartition(" ")
    assert about(plan, ours.split(maxsplit=1)[0])
    assert about(median_us(best), time)
    assert best["algorithm"].startswith(LABELS.get(name, name.lower()))
    assert about(median_us(best) / plan, ratio)
