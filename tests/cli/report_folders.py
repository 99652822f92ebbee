"""Folders of `commlib report`, made up: stages that are done or failed, and their documents, without a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from commlib.cli.report import Settings
from commlib.cli.report.folder import DONE, Folder
from tests.cli.bench_documents import document

EVIL = "<script>alert(1)</script>|`*_[a](javascript:b)"
QUICK = Settings("quick", 2, on_gpus=False)
RADIX = {
    **{key: document("all_reduce")[key] for key in ("created", "complete", "ended", "environment")},
    **{"schema": "commlib.radix_profile", "version": 1, "command": "commlib profile radix", "leaves": 9, "rows": []},
}


def kept(folder: Path, *names: str, **documents: dict[str, Any]) -> Folder:
    """Return a folder whose stages are done, with these documents."""
    made = Folder(folder, QUICK)
    for name, found in documents.items():
        made.keep(name, ended(name), found)
    for name in names:
        made.keep(name, ended(name), None)
    return made


def ended(name: str, state: str = DONE, code: int = 0, said: str = "") -> dict[str, Any]:
    created = "2026-01-01T00:00:00+00:00"
    return {"state": state, "command": name, "code": code, "seconds": 1.5, "said": said, "created": created}


def doctor(*findings: dict[str, Any], runs: bool = True) -> dict[str, Any]:
    return {
        "schema": "commlib.doctor",
        "version": 1,
        "commlib": "0.1.0",
        "job": "shm",
        "runs": runs,
        "findings": list(findings),
    }


def finding(topic: str, state: str, detail: str, remedy: str = "") -> dict[str, Any]:
    return {"topic": topic, "state": state, "detail": detail, "remedy": remedy, "table": [], "needed": True}
