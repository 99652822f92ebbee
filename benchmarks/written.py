"""What the scripts here share: their options, the ranks, figures, the head of their documents, and writing these."""

from __future__ import annotations

import argparse
import shlex
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import commlib
from commlib.communicator import Communicator
from commlib.tools.report import document as files
from commlib.tools.report.formats import json_text, percentiles_us, ratio_of
from commlib.tools.report.formats import ratio_text as value_text
from commlib.tools.timing import Measurement, fingerprint


def command_line(text: str | None) -> argparse.ArgumentParser:
    """Return the parser of a script's command line, which has -o."""
    found = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("-o", "--output", type=Path)
    return found


def whole_numbers(text: str) -> tuple[int, ...]:
    """Read an option that is a list: 1,2,4."""
    return tuple(map(int, text.split(",")))


def joined(device: str | None) -> Communicator:
    """Return the communicator of the ranks that `commlib run` or torchrun started."""
    return commlib.init(backend={"cpu": "shm", "cuda": "nccl", None: "auto"}[device])


def figures(result: Measurement) -> dict[str, Any]:
    """Return what a row says of a time."""
    seconds = {"us": result.median_s, "low_us": result.percentile_s(10), "high_us": result.percentile_s(90)}
    return {**{name: round(s * 1e6, 3) for name, s in seconds.items()}, "blocks": len(result.times_s)}


def ratio(theirs: Measurement, ours: Measurement) -> dict[str, float]:
    """Return how many times as long they take, with its interval."""
    return ratio_of(percentiles_us(theirs), percentiles_us(ours))


def ratio_text(found: dict[str, float] | None) -> str:
    """Write such a ratio."""
    return f"{value_text(found['ratio'])} ({value_text(found['low'])}–{value_text(found['high'])})" if found else "-"


def head(name: str, ranks: int, backend: str = "", launched: bool = False) -> dict[str, Any]:
    """Return what every document begins with; the command without the folders it happened to use."""
    words = (Path(word).name if word.startswith("/") else word for word in sys.argv[1:])
    launcher = ["commlib", "run", "-n", str(ranks)] if launched else []
    return {
        "schema": f"commlib.{name}",
        "version": 1,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": shlex.join([*launcher, "python", f"benchmarks/{Path(sys.argv[0]).name}", *words]),
        "fingerprint": fingerprint(backend),
        "ranks": ranks,
    }


def write(path: Path | None, document: dict[str, Any]) -> None:
    """Write a document, a line for a row, if a file was named."""
    if path is not None:
        files.write(path, json_text(document))
