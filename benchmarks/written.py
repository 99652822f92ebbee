"""What the scripts here share: their options, the head of their documents, and writing these."""

from __future__ import annotations

import argparse
import shlex
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from commlib.report import files
from commlib.report.formats import json_text
from commlib.timing import fingerprint


def command_line(text: str | None) -> argparse.ArgumentParser:
    """Return the parser of a script's command line, which has -o."""
    found = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("-o", "--output", type=Path)
    return found


def head(name: str, ranks: int, backend: str = "") -> dict[str, Any]:
    """Return what every document begins with; the command without the folders it happened to use."""
    words = (Path(word).name if word.startswith("/") else word for word in sys.argv[1:])
    return {
        "schema": f"commlib.{name}",
        "version": 1,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *words]),
        "fingerprint": fingerprint(backend),
        "ranks": ranks,
    }


def write(path: Path | None, document: dict[str, Any]) -> None:
    """Write a document, a line for a row, if a file was named."""
    if path is not None:
        files.write(path, json_text(document))
