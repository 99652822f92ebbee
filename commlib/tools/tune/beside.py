"""Beside: the file of samples that goes with a plan; people and `commlib tune --from` read it, `init()` does not."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from commlib.plan import Plan
from commlib.tools.report.files import write
from commlib.tools.report.formats import json_text
from commlib.tools.tune.case import Case
from commlib.tools.tune.rules import Table
from commlib.tools.tune.samples import Samples

SCHEMA, VERSION = "commlib.samples", 1
Measured = dict[int, dict[Case, tuple[Samples, bool]]]  # by number of ranks; whether a case serves both modes


def beside(plan: Path) -> Path:
    """Return where the samples of a plan file lie."""
    return plan.with_suffix(".samples.json")


def keep(path: Path, plan: Plan, samples: Mapping[str, Any]) -> Path | None:
    """Write a plan and what it was made from; return where the plan that stood there is now, if one did."""
    path.parent.mkdir(parents=True, exist_ok=True)
    before = path.with_name(f"{path.name}.before") if path.is_file() else None
    if before is not None:
        write(before, path.read_text(encoding="utf-8"))
    write(path, plan.file_text)
    if path.is_file():
        write(beside(path), json_text(samples))
    return before


def read(path: Path) -> dict[str, Any]:
    """Return a file of samples; what is none is a ValueError."""
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        assert (found["schema"], found["version"]) == (SCHEMA, VERSION)
        measured(found)
    except OSError as error:
        raise ValueError(f"cannot read samples {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AssertionError, AttributeError, IndexError):
        text = f"{path} is no file of samples, version {VERSION}; give the .samples.json that lies beside a plan"
        raise ValueError(text) from None
    return found


def cases_beside(plan: Plan) -> dict[str, Any]:
    """Return the samples that a plan in force was made from, where they are known."""
    path = beside(Path(plan.source))
    return dict(read(path)["cases"]) if path.is_file() else {}


def document(
    tables: Sequence[Table], before: Mapping[str, Any], world: int, fingerprint: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the samples of the new tables, with how each was judged, and those of before whose rules stand.

    `serves_all` says of a table that it serves both modes: what it serves is in no file.
    """
    served = {_name(case, world) for table in tables for case in table.served()}
    cases = {name: case for name, case in before.items() if name not in served}
    for table in tables:
        judged = {key: value for key, value in vars(table.verdict).items() if key != "slower" and value is not None}
        head = {"judged": judged, "serves_all": (table.dtype, table.mode) == ("*", "*")}
        cases[_name(table.case, world)] = {**head, **table.samples.medians()}
    return {"schema": SCHEMA, "version": VERSION, "fingerprint": dict(fingerprint), "cases": cases}


def measured(found: Mapping[str, Any]) -> Measured:
    """Return the samples of a file."""
    by_world: Measured = {}
    for name, of_case in found["cases"].items():  # all_reduce float32 eager, 2 ranks
        case, _, ranks = name.rpartition(", ")
        samples = Samples.of_medians(of_case), of_case.get("serves_all", False)
        by_world.setdefault(int(ranks.removesuffix(" ranks")), {})[Case.read(case)] = samples
    return by_world


def _name(case: Case, world: int) -> str:
    return f"{case}, {world} ranks"
