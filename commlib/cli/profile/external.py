"""Candidates of a file of yours: `--peer FILE.py` with a function `candidates(kernel, case, inputs)`."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from commlib.cli.profile.case import FLOOR, PEER, Candidate, Case, Inputs, missing
from commlib.timing import Run

FLOORS = ("probe", "empty")  # labels that begin so are floors: their values are not compared, nor are we with them


class External:
    """One such file; it is asked once for each set of inputs."""

    def __init__(self, path: Path) -> None:
        self.name = path.stem
        self._module = _loaded(path)

    def candidates(self, kernel: str, case: Case, sets: Sequence[Inputs]) -> list[Candidate]:
        """Return one candidate for each label; what the file raises is one line without times."""
        try:
            made = [dict(self._module.candidates(kernel, case, inputs)) for inputs in sets]
            found = {label: [of_set[label] for of_set in made] for label in made[0]}
        except Exception as error:
            return [missing(self.name, " ".join(f"{type(error).__name__}: {error}".split())[:200])]
        return [_candidate(label, calls, sets) for label, calls in found.items()]


def _candidate(label: str, calls: Sequence[Run | str], sets: Sequence[Inputs]) -> Candidate:
    role = FLOOR if label.startswith(FLOORS) else PEER
    if isinstance(calls[0], str):
        return missing(label, calls[0], role)
    at = {id(inputs): call for inputs, call in zip(sets, calls, strict=True)}

    def prepare(inputs: Any) -> Run:
        call = at[id(inputs)]
        assert not isinstance(call, str)
        return call

    return Candidate(label, prepare, role)


def _loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"commlib_peer_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ValueError(f"--peer {path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ValueError(f"--peer {path}: {type(error).__name__}: {error}") from error
    if not callable(getattr(module, "candidates", None)):
        raise ValueError(f"--peer {path} has no function candidates(kernel, case, inputs)")
    return module
