"""Samples: what was measured, size by size; and the file that a later run goes on from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from commlib.tools.tune.case import Option

Times = tuple[float, ...]  # seconds per call of each block, the slowest rank's


@dataclass
class Samples:
    """The blocks of every option at every size; those that were raced out have only a few."""

    times: dict[int, dict[Option, Times]] = field(default_factory=dict)
    left_out: dict[Option, str] = field(default_factory=dict)  # why it was not timed at all
    plain: dict[int, Option] = field(default_factory=dict)  # what PLAIN stands for, by size
    sms: dict[int, dict[Option, int]] = field(default_factory=dict)  # multiprocessors, at sizes where they matter

    @property
    def sizes(self) -> list[int]:
        """Return the sizes that were measured."""
        return sorted(self.times)

    @property
    def options(self) -> list[Option]:
        """Return all options that were timed somewhere, in a fixed order."""
        return sorted({option for of_size in self.times.values() for option in of_size}, key=str)

    def with_only(self, options: Mapping[int, Option | None]) -> Samples:
        """Return the same with nothing but one option at some sizes."""
        times = dict(self.times)
        for size, option in options.items():
            if option in times[size]:
                times[size] = {option: times[size][option]}
        return replace(self, times=times)

    def medians(self) -> dict[str, Any]:
        """Return for a file what each option took: medians in µs, by size; null where it was not timed."""
        found: dict[str, Any] = {"bytes": self.sizes}
        if self.plain:
            found["plain"] = [str(self.plain[size]) if size in self.plain else None for size in self.sizes]
        rows = {option: [self.times[size].get(option) for size in self.sizes] for option in self.options}
        found["p50_us"] = {
            str(option): [round(median(times) * 1e6, 3) if times else None for times in row]
            for option, row in rows.items()
        }
        return found

    @classmethod
    def of_medians(cls, found: Mapping[str, Any]) -> Samples:
        """Return samples of one block each."""
        sizes, rows = found["bytes"], found["p50_us"].items()
        times: dict[int, dict[Option, Times]] = {
            size: {Option.read(name): (row[at] * 1e-6,) for name, row in rows if row[at] is not None}
            for at, size in enumerate(sizes)
        }
        plain = zip(sizes, found.get("plain", ()), strict=False)
        return cls(times, plain={size: Option.read(name) for size, name in plain if name})


class Store:
    """A file of samples, one line for each size as soon as it is there; other conditions make another file's worth."""

    def __init__(self, path: Path | None, conditions: Mapping[str, Any], resume: bool) -> None:
        self._path = path
        self._key = hashlib.sha256(json.dumps(conditions, sort_keys=True).encode()).hexdigest()[:16]
        self._known: dict[tuple[str, int], dict[Option, Times]] = {}
        if path is not None and resume:
            self._known = dict(self._read(path))
        elif path is not None:
            path.unlink(missing_ok=True)

    def find(self, case: str, num_bytes: int) -> dict[Option, Times] | None:
        """Return what an earlier run measured, or None."""
        return self._known.get((case, num_bytes))

    def add(self, case: str, num_bytes: int, times: Mapping[Option, Times]) -> None:
        """Keep what was measured."""
        if self._path is None:
            return
        rows = {str(option): blocks for option, blocks in times.items()}
        line = json.dumps({"key": self._key, "case": case, "bytes": num_bytes, "times_s": rows})
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")
        except OSError as error:
            why = f"cannot write {self._path}: {error.strerror}"
            raise ValueError(f"{why}; -o FILE names another place for the plan and its samples") from None

    def _read(self, path: Path) -> Iterator[tuple[tuple[str, int], dict[Option, Times]]]:
        """Yield the lines that were measured under the same conditions; a line that was cut off ends the file."""
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            try:
                row = json.loads(line)
                times = {Option.read(words): tuple(blocks) for words, blocks in row["times_s"].items()}
                if row["key"] == self._key:
                    yield (row["case"], row["bytes"]), times
            except (ValueError, KeyError, TypeError, AttributeError):
                return
