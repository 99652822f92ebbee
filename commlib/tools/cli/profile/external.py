"""Candidates of a file of yours: `--peer FILE.py` with a function `candidates(kernel, case, inputs)`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from commlib.errors import one_line
from commlib.tools.baselines.kernels.case import FLOOR, PEER, Candidate, Case, Inputs, missing
from commlib.tools.cli.options import python_file
from commlib.tools.timing import Run

FLOORS = ("probe", "empty")  # labels that begin so are floors: their values are not compared, nor are we with them


class External:
    """One such file; it is asked once for each set of inputs."""

    def __init__(self, path: Path) -> None:
        self.name = path.stem
        self._module = python_file(path, "candidates")

    def __call__(self, kernel: str, case: Case, sets: Sequence[Inputs]) -> list[Candidate]:
        """Return one candidate for each label; what the file raises is one line without times."""
        try:
            made = [dict(self._module.candidates(kernel, case, inputs)) for inputs in sets]
            found = {label: [of_set[label] for of_set in made] for label in made[0]}
        except Exception as error:
            return [missing(self.name, one_line(error))]
        return [_candidate(label, calls, sets) for label, calls in found.items()]


def _candidate(label: str, calls: Sequence[Run | str], sets: Sequence[Inputs]) -> Candidate:
    role = FLOOR if label.startswith(FLOORS) else PEER
    if isinstance(calls[0], str):
        return missing(label, calls[0], role)
    at: dict[int, Any] = {id(inputs): call for inputs, call in zip(sets, calls, strict=True)}
    return Candidate(label, lambda inputs: at[id(inputs)], role)
