"""The last failure: what `commlib run` keeps of a job that failed, for `commlib doctor` to show later."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from commlib import env

LINES, LINE_BYTES = 20, 500  # of the failed rank's stderr


def path() -> Path:
    """Return where it is kept; RuntimeError for a user without a home."""
    folder = Path(env.foreign("XDG_STATE_HOME") or "~/.local/state").expanduser()
    return folder / "commlib" / "last-failure.json"


def keep(command: Sequence[str], size: int, said: str, errors: Sequence[bytes]) -> None:
    """Write it over the one before; where nothing can be written, none is kept."""
    lines = [line[:LINE_BYTES].decode(errors="replace") for line in errors]
    text = json.dumps({"time": time.time(), "command": list(command), "ranks": size, "said": said, "stderr": lines})
    with contextlib.suppress(OSError, RuntimeError):
        place = path()
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with NamedTemporaryFile("w", dir=place.parent, delete=False, encoding="utf-8") as file:  # mode 0600
            file.write(text)
        Path(file.name).replace(place)


def last() -> dict[str, Any] | None:
    """Return what is kept, None for nothing that can be read."""
    try:
        found = json.loads(path().read_text(encoding="utf-8"))
    except (OSError, RuntimeError, ValueError):
        return None
    keys = {"time", "command", "ranks", "said", "stderr"}
    return found if isinstance(found, dict) and keys <= found.keys() else None
