"""Files of results: whether one can be written, reading with every fault named, writing it whole or not at all."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Any

from commlib.errors import printable


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
