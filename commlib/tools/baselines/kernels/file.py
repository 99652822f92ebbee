"""A file of yours as a baseline: `--peer FILE.py` with a function `candidates(kernel, case, inputs)`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from commlib.errors import one_line
from commlib.tools.baselines.kernels.case import FLOOR, PEER, PROBES, Baseline, Candidate, Case, Inputs, missing
from commlib.tools.timing import Run


class File(Baseline):
    """The function of one such file; it is called once for each set of inputs."""

    def __init__(self, name: str, function: Any) -> None:
        self.name, self._function = name, function

    def candidates(self, case: Case, sets: Sequence[Inputs]) -> list[Candidate]:
        """Return one candidate for each label; what the file raises is one line without times."""
        try:
            made = [dict(self._function(case.kernel, case, inputs)) for inputs in sets]
            calls = {label: [of_set[label] for of_set in made] for label in made[0]}
        except Exception as error:
            return [missing(self.name, one_line(error))]
        return [_candidate(label, of_label, sets) for label, of_label in calls.items()]


def _candidate(label: str, calls: Sequence[Run | str], sets: Sequence[Inputs]) -> Candidate:
    role = FLOOR if label.startswith(PROBES) else PEER
    if isinstance(calls[0], str):
        return missing(label, calls[0], role)
    at: Mapping[int, Any] = {id(inputs): call for inputs, call in zip(sets, calls, strict=True)}
    return Candidate(label, lambda inputs: at[id(inputs)], role)
