"""The document of a run: what `commlib radix simulate` writes as JSON, and all that is shown is rendered from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from commlib.cli.radix.simulate import Row, Simulation
from commlib.timing import environment, fingerprint

SCHEMA, VERSION = "commlib.radix_simulation", 1


@dataclass(frozen=True)
class Settings:
    """What every trace is simulated with."""

    policies: tuple[str, ...]
    capacities: tuple[int, ...]
    evictions: tuple[str, ...]
    page_size: int

    def simulations(self) -> list[Simulation]:
        """Return one for each capacity, policy and way of evicting."""
        return [
            Simulation(policy, capacity, self.page_size, eviction)
            for capacity in self.capacities
            for policy in self.policies
            for eviction in self.evictions
        ]


class Report:
    """Collects the traces of a run and makes the document of what is there so far."""

    def __init__(self, settings: Settings, command: str) -> None:
        self.traces: list[dict[str, Any]] = []
        self._settings, self._command = settings, command
        self._created = datetime.now(timezone.utc).isoformat(timespec="seconds")

    def add(self, path: Path, unlimited: Simulation, simulations: Sequence[Simulation]) -> dict[str, Any]:
        """Take the figures of one trace and return them."""
        found = unlimited.row()
        rows = [simulation.row() for simulation in simulations]
        for row in rows:
            row["best"] = row["requests"] > 0 and row["hit_rate"] == _best(rows, row["capacity"])
        names = ("requests", "prompt_tokens", "hit_rate")
        self.traces.append({"trace": path.name, **{name: found[name] for name in names}, "rows": rows})
        return self.traces[-1]

    def document(self, ended: str = "", complete: bool = True) -> dict[str, Any]:
        """Return everything; `ended` says why it is not complete."""
        settings = self._settings
        return {
            "schema": SCHEMA,
            "version": VERSION,
            "command": self._command,
            "created": self._created,
            "complete": complete and not ended,
            "ended": ended,
            "fingerprint": fingerprint("cpu"),
            "environment": environment(),
            "config": {
                "policies": list(settings.policies),
                "capacities": list(settings.capacities),
                "evictions": list(settings.evictions),
                "page_size": settings.page_size,
            },
            "traces": self.traces,
        }


def label(row: Row, several: bool) -> str:
    """Name the policy of a row, and how it evicts where there is a choice."""
    return f"{row['policy']} {row['eviction']}" if several else str(row["policy"])


def _best(rows: Sequence[Row], capacity: int) -> float:
    return max(float(row["hit_rate"]) for row in rows if row["capacity"] == capacity)
