"""Folder: what a report keeps, so that a second run goes on: a document for each stage, and how far it is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from commlib.tools.cli.report import STAGES, Settings
from commlib.tools.report.document import Kind
from commlib.tools.report.files import write
from commlib.tools.report.formats import json_text
from commlib.tools.report.packed import packed

KIND = Kind("commlib.report", 1, "commlib report", "commlib.tools.cli.report")
STATE = "report.json"
DONE, FAILED, INTERRUPTED = "done", "failed", "interrupted"


class Folder:
    """The folder of one report."""

    def __init__(self, path: Path, settings: Settings | None = None) -> None:
        self.path = path
        self.state: dict[str, Any] = {"stages": {}, "looks": []}
        if (path / STATE).exists():
            self.state = KIND.read(path / STATE)
        elif settings is None:
            raise ValueError(f"{path} has no {STATE}; name the folder that `commlib report -o` wrote")
        else:
            self.state |= {"schema": KIND.name, "version": KIND.version, "settings": vars(settings)}

    @property
    def settings(self) -> Settings:
        """What is measured here."""
        return Settings(**self.state["settings"])

    @property
    def stages(self) -> dict[str, dict[str, Any]]:
        """How each stage that was begun ended, in the order of the table."""
        return {name: self.state["stages"][name] for name in STAGES if name in self.state["stages"]}

    def has(self, name: str) -> bool:
        """Say whether a stage is measured."""
        return bool(self.stages.get(name, {}).get("state") == DONE)

    def file(self, name: str) -> Path:
        """Return where the document of a stage is."""
        return self.path / f"{name}.json"

    def keep(self, name: str, ended: Mapping[str, Any], document: Mapping[str, Any] | None) -> None:
        """Write how a stage ended, after its document if it has one."""
        if document is not None:
            write(self.file(name), packed([document]) if "rows" in document else json_text(document))
        self.state["stages"][name] = dict(ended)
        self.save()

    def save(self) -> None:
        """Write the state."""
        write(self.path / STATE, json.dumps(self.state, indent=1))
