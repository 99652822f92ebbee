"""Commands: how they end, also by Ctrl-C, what they refuse, and the documents that they write."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from click.testing import CliRunner

from commlib.tools.cli import main
from commlib.tools.report.document import Kind, required

Run = Callable[..., subprocess.CompletedProcess[str]]


def exit_code(*words: str) -> int:
    """Return the exit code of a command."""
    with pytest.raises(SystemExit) as end:
        main(words)
    return end.value.code


def refuses(command: str, cases: Iterable[tuple[str, str]]) -> None:
    """Check that a command ends with exit code 2 and one line, which says what is wrong with these words."""
    for words, said in cases:
        result = CliRunner().invoke(main, [*command.split(), *words.split()], env={"COLUMNS": "200"})
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1), (words, result.output)
        assert said in result.stderr, words


def tells(found: Any, state: str, said: str, remedy: str = "") -> None:
    """Check what a finding of `commlib doctor` tells."""
    assert (found.state, said in found.detail, remedy in found.remedy) == (state, True, True), found


def interrupted(words: Iterable[str], begun: Callable[[Any], bool], python: Path | str = sys.executable) -> str:
    """Send Ctrl-C to a command of one's own session once it has begun; return what it says from then on."""
    with subprocess.Popen(
        [str(python), "-m", "commlib", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        deadline = time.monotonic() + 60
        while not begun(process.stdout) and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)[0]
    assert process.returncode == 130, said
    return said


def written(found: Path | str, kind: Kind) -> dict[str, Any]:
    """Return the document in a file, or in a text; it and its rows have the fields of its kind."""
    document: dict[str, Any] = json.loads(found if isinstance(found, str) else found.read_text(encoding="utf-8"))
    (of_row,) = get_args(get_type_hints(kind.of)["rows"])
    for part, of in [(document, kind.of), *((row, of_row) for row in document["rows"])]:
        kinds = get_args(of) or (of,)
        assert any({field.name for field in fields(one) if required(field)} <= part.keys() for one in kinds)
        assert part.keys() <= {field.name for one in kinds for field in fields(one)}
    return document
