"""Commands called in this process: how they end, what they refuse, and the documents that they write."""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner

from commlib.cli import main


def exit_code(*words: str) -> int:
    """Return the exit code of a command."""
    with pytest.raises(SystemExit) as end:
        main(words)
    assert isinstance(end.value.code, int)
    return end.value.code


def refuses(command: str, cases: Iterable[tuple[str, str]]) -> None:
    """Check that a command ends with exit code 2 and one line, which says what is wrong with these words."""
    for words, said in cases:
        result = CliRunner().invoke(main, [*command.split(), *words.split()], env={"COLUMNS": "200"})
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1), (words, result.output)
        assert said in result.stderr, words


def written(found: Path | str, schema: str) -> dict[str, Any]:
    """Return the document in a file, or in a text, after a look at its schema, such as `bench/schema.json`."""
    document: dict[str, Any] = json.loads(found if isinstance(found, str) else found.read_text(encoding="utf-8"))
    rules = json.loads((resources.files("commlib") / schema).read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(rules).validate(document)
    return document
