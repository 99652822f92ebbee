"""Triton's kernels as peers: what one writes by hand; without Triton or a GPU they are listed with the reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from commlib.cli.profile import triton_code
from commlib.cli.profile.case import Candidate, Case, missing
from commlib.timing import Run

ROW_BLOCK, SPLIT_BLOCK = 8192, 1024  # elements of a program: a row, and a part of one where rows are few
Launch = Callable[[Any], Run]


def gathers(case: Case) -> list[Candidate]:
    """Return the gather with one program for each row, and with several."""
    block = _power_of_two(case.dim)
    found = [_peer("triton row", lambda inputs: triton_code.gather(inputs, min(block, ROW_BLOCK)))]
    if block > SPLIT_BLOCK:
        found.append(_peer("triton split", lambda inputs: triton_code.gather(inputs, SPLIT_BLOCK)))
    return found


def scatters(case: Case) -> list[Candidate]:
    """Return the scatter of K and V with one program for each token."""
    block = min(_power_of_two(case.dim), ROW_BLOCK)
    return [_peer("triton", lambda inputs: triton_code.scatter(inputs, block))]


def metadata(case: Case) -> list[Candidate]:
    """Return torch's cumsum and a kernel with one program for each request."""
    return [_peer("triton", lambda inputs: triton_code.metadata(inputs, _power_of_two(case.dim)))]


def _peer(label: str, launch: Launch) -> Candidate:
    reason = triton_code.REASON or ("" if torch.cuda.is_available() else "Triton needs a GPU")
    return missing(label, reason) if reason else Candidate(label, launch)


def _power_of_two(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()
