"""Beside: the file of samples that goes with a plan; people and `commlib tune --from` read it, `init()` does not."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from commlib.plan import Plan
from commlib.tuner.case import Case
from commlib.tuner.judge import Verdict
from commlib.tuner.rules import Table
from commlib.tuner.samples import Samples

SCHEMA, VERSION = "commlib.samples", 1
Cases = dict[str, dict[str, Any]]  # by "all_reduce float32 eager, 2 ranks"


def beside(plan: Path) -> Path:
    """Return where the samples of a plan file lie."""
    return plan.with_suffix(".samples.json")


def read(path: Path) -> dict[str, Any]:
    """Return a file of samples; what is none is a ValueError."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        assert (found["schema"], found["version"]) == (SCHEMA, VERSION)
        {Case.read(name.rpartition(", ")[0]): Samples.of_medians(case) for name, case in found["cases"].items()}
    except OSError as error:
        raise ValueError(f"cannot read samples {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AssertionError, AttributeError, IndexError):
        text = f"{path} is no file of samples, version {VERSION}; give the .samples.json that lies beside a plan"
        raise ValueError(text) from None
    return dict(found)


def cases_beside(plan: Plan) -> Cases:
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
        head = {"judged": _judged(table.verdict), "serves_all": (table.dtype, table.mode) == ("*", "*")}
        cases[_name(table.case, world)] = {**head, **table.samples.medians()}
    return {"schema": SCHEMA, "version": VERSION, "fingerprint": dict(fingerprint), "cases": cases}


def file_text(found: Mapping[str, Any]) -> str:
    """Return the text to keep in a file: a line for the sizes of a case and for each option."""
    head = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in found.items() if key != "cases"]
    cases = ",\n".join(f"  {json.dumps(name)}: {_case_text(case)}" for name, case in found["cases"].items())
    return "{\n" + ",\n".join([*head, f' "cases": {{\n{cases}\n }}']) + "\n}\n"


def _case_text(case: Mapping[str, Any]) -> str:
    head = [f"   {json.dumps(key)}: {json.dumps(value)}" for key, value in case.items() if key != "p50_us"]
    rows = ",\n".join(f"    {json.dumps(name)}: {json.dumps(row)}" for name, row in case["p50_us"].items())
    return "{\n" + ",\n".join([*head, f'   "p50_us": {{\n{rows}\n   }}']) + "\n  }"


def measured(found: Mapping[str, Any], world: int) -> dict[Case, tuple[Samples, bool]]:
    """Return the samples of one number of ranks, and which of them serve both modes."""
    end = f", {world} ranks"
    named = {Case.read(name.removesuffix(end)): case for name, case in found["cases"].items() if name.endswith(end)}
    return {case: (Samples.of_medians(of_case), of_case.get("serves_all", False)) for case, of_case in named.items()}


def worlds(found: Mapping[str, Any]) -> list[int]:
    """Return the numbers of ranks that there are samples of."""
    return sorted({int(name.rpartition(", ")[2].removesuffix(" ranks")) for name in found["cases"]})


def _name(case: Case, world: int) -> str:
    return f"{case}, {world} ranks"


def _judged(verdict: Verdict) -> dict[str, Any]:
    found = {"regret": verdict.regret, "worst": verdict.worst, "over_default": verdict.over_default}
    return {key: value for key, value in {**found, "noise": verdict.noise}.items() if value is not None}
