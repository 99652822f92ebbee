"""Documents: what a command writes as JSON and shows; a Kind reads them, a Report makes one of a run. And files."""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from commlib import env
from commlib.errors import printable

Row = dict[str, Any]  # a row of a document: its schema says what is in it
# The variables that change a figure: named families only, as the rest of the environment holds secrets.
FAMILIES = ("NCCL_", "CUDA_", "TORCH_NCCL_", "OMP_", "COMMLIB_")
# In NAME=VALUE: what may be a secret, a path, a user at a host, or an address.
PRIVATE = re.compile(r"^\w*(KEY|TOKEN|SECRET|PASS|CRED|COMM_ID|HOST|PLAN|LIBRARY|DIR)|[/\\~@]|\b\d+(\.\d+){3}\b")


@dataclass(frozen=True)
class Document:
    """What every document has."""

    schema: str  # the name of the kind
    version: int
    command: str
    created: str  # ISO 8601, UTC
    complete: bool
    ended: str | None  # why the run is not complete
    fingerprint: dict[str, Any]  # the machine and its software: cpu, cores, gpu, gpus, kernel, torch, commlib …
    environment: dict[str, Any]  # the variables that may change a figure, never all


@dataclass(frozen=True)
class Kind:
    """Documents of one command: `name` and `version` stand in each; its fields are those of a dataclass."""

    name: str
    version: int
    command: str  # that writes them
    of: type[Any]  # mostly a Document

    def read(self, path: Path) -> dict[str, Any]:
        documents = self.read_all(path)
        if len(documents) != 1:
            raise ValueError(f"{path} has {len(documents)} runs; `{self.command} show --part N --json` gives one")
        return documents[0]

    def read_all(self, path: Path) -> list[dict[str, Any]]:
        """Read the documents of a file; what is there beyond the fields does no harm, a newer commlib may add it."""
        documents = unpacked(read_json(path, self.command))
        for document in documents:
            name, version = (document.get(key) if isinstance(document, dict) else None for key in ("schema", "version"))
            if name != self.name:
                raise ValueError(f'{path} is not from `{self.command}`: its "schema" is {name!r}, not "{self.name}"')
            if version != self.version:
                remedy = "upgrade commlib" if isinstance(version, int) and version > self.version else "measure again"
                reads = f"this commlib reads version {self.version}"
                raise ValueError(f"{path} has version {version!r}, but {reads}: {remedy}")
        return documents


def required(field: Field[Any]) -> bool:
    return field.default is MISSING


def to_json(row: Any) -> Row:
    """Return what JSON has of a row's dataclass; a field with a default is left out where it is None."""
    parts = ((field, getattr(row, field.name)) for field in fields(row))
    return {field.name: part for field, part in parts if part is not None or required(field)}


class Report:
    """Collects what a run measures and makes the document of what is there so far."""

    def __init__(self, kind: Kind, command: str, device: str = "") -> None:
        self.rows: list[Row] = []
        self.notes: list[str] = []
        self._kind, self._command, self._device = kind, command, device
        self._created = datetime.now(timezone.utc).isoformat(timespec="seconds")

    def document(self, ended: str = "", complete: bool = True) -> dict[str, Any]:
        from commlib.plan.search import fingerprint

        return {
            "schema": self._kind.name,
            "version": self._kind.version,
            "command": self._command,
            "created": self._created,
            "complete": complete and not ended,
            "ended": ended,
            "fingerprint": fingerprint(self._device),
            "environment": environment(),
            **self.content(),
        }

    def content(self) -> dict[str, Any]:
        """Return what this kind has in addition."""
        return {"rows": self.rows, "notes": self.notes}


def unpacked(content: Any) -> list[Any]:
    """Return the documents of a file; in one of benchmarks/results, what rows share is written once."""
    documents = content if isinstance(content, list) and all(isinstance(part, dict) for part in content) else [content]
    return [_whole(document) for document in documents]


def _whole(document: Any) -> Any:
    rows = document.get("rows") if isinstance(document, dict) else None
    if not isinstance(rows, dict):
        return document
    lines = ((table, line) for table in rows["tables"] for line in table["rows"])
    whole = [_nested(table["shared"] | dict(zip(table["columns"], line, strict=True))) for table, line in lines]
    return {**document, "rows": whole}


def _nested(cells: Mapping[str, Any]) -> Row:
    row: Row = {}
    for place, value in cells.items():
        *parts, key = place.split(".")
        inside = row
        for part in parts:
            inside = inside.setdefault(part, {})
        inside[key] = value
    return row


def environment(variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the settings of these families, but for what may be private."""
    variables = os.environ if variables is None else variables
    ours = {variable.name for variable in env.VARIABLES if variable.internal}
    return {
        name: value
        for name, value in sorted(variables.items())
        if name.startswith(FAMILIES) and name not in ours and not PRIVATE.search(f"{name}={value}")
    }


# --- files: one is written whole or not at all, and what is wrong with one is said


def unwritable(path: Path) -> str:
    """Say what keeps a file from being written in the end, "" for nothing."""
    if _is_special(path):  # a pipe or a device is written into
        return "" if os.access(path, os.W_OK) else f"{path} cannot be written to; name another file"
    if not path.parent.is_dir():
        return f"there is no folder {path.parent}; make it first"
    if not os.access(path.parent, os.W_OK):
        return f"files of the folder {path.parent} cannot be written; name another"
    return ""


def write(path: Path, text: str) -> None:
    """Write so that a reader finds the old file or the whole new one; a place that cannot be written is a ValueError.

    What is no regular file (a pipe, /dev/null) is written into: to put a file in its place would take it away.
    """
    data = f"{text.removesuffix(chr(10))}\n".encode()
    temporary = path.resolve().with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        if _is_special(path):
            path.write_bytes(data)
            return
        with temporary.open("xb") as file:  # a link that somebody put there is not followed
            file.write(data)
        temporary.replace(path.resolve())
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror}") from None
    finally:
        temporary.unlink(missing_ok=True)


def _is_special(path: Path) -> bool:
    return path.exists() and not path.is_file()


def read_json(path: Path, command: str) -> Any:
    """Return what a file has that this command wrote; a fault is a ValueError that names the file."""
    try:
        return printable(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:  # no text, or no JSON
        raise ValueError(f"{path} is not the JSON that `{command} -o` writes: {error}") from None
