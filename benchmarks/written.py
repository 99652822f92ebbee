"""What the scripts here share: their options, the head of their documents, and writing these."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from commlib.report import files
from commlib.report.formats import json_text
from commlib.timing import fingerprint


def arguments(text: str | None, add: Callable[[argparse.ArgumentParser], object] = lambda parser: None) -> Any:
    """Read the command line: -o, and what `add` adds."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    add(parser)
    parser.add_argument("-o", "--output", type=Path)
    return parser.parse_args()


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
