"""Calls of one device, without ranks: the protocol's blocks, for what moves data alone."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from commlib.errors import Unsupported
from commlib.timing.blocks import (
    Entry,
    Measurement,
    Protocol,
    block_seconds,
    calibrate,
    run_blocks,
    run_graphs,
    undisturbed,
)
from commlib.timing.candidate import Candidate, Run

if TYPE_CHECKING:
    from commlib.collectives.spec import Call


class Alone:
    """A world of one: there is nobody to wait for."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.size = device, 1

    def barrier(self) -> None:
        """Wait for nobody."""

    def all_gather_object(self, obj: Any) -> list[Any]:
        """Return what the one rank passed."""
        return [obj]


def measure_alone(world: Alone, calls: Mapping[str, Sequence[Run]], protocol: Protocol, name: str) -> list[Measurement]:
    """Time rows of calls, one call for each set of buffers; their values are the caller's to check before.

    Everything runs on the current stream; graphs want one of their own (graph.own_stream).
    """
    started = time.perf_counter()
    entries = [_entry(label, runs) for label, runs in calls.items()]
    sets = max((len(entry.runs) for entry in entries), default=1)
    protocol = replace(protocol, buffers=sets, block_s=protocol.block_s or block_seconds(world))
    with undisturbed():
        for entry in entries:
            calibrate(world, entry, protocol)
        if protocol.graph:
            run_graphs(world, entries, protocol, (started, name))
        else:
            run_blocks(world, entries, protocol, (started, name))
    return [entry.result for entry in entries]


def _entry(label: str, runs: Sequence[Run]) -> Entry:
    entry = Entry(Candidate(label, _no_tensors))
    entry.runs = list(runs)
    return entry


def _no_tensors(x: torch.Tensor, out: torch.Tensor, call: Call) -> Run:
    raise Unsupported("this candidate makes its calls on tensors of its own")
