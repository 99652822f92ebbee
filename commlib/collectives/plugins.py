"""Plugins: algorithms that live outside the tree. A Python file has their rows, and the native files lie next to it.

asked for by COMMLIB_PLUGINS or an entry point | run the file | check its rows | give each the place of its native half
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from hashlib import sha256
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from commlib import env
from commlib.bootstrap.world import World
from commlib.build.cache import COMPILER_S
from commlib.build.plugin_code import load_plugin
from commlib.build.sources import load_module
from commlib.collectives.spec import Algorithm, Collective
from commlib.errors import BuildFailed, one_line

GROUP = "commlib.plugins"
FFI_OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")  # csrc/ffi/kernel.cc knows their sizes


class Tables(Mapping[str, Collective]):
    """The collectives by name, with the rows of plugins, which are loaded when the tables are first used."""

    def __init__(self, collectives: Iterable[Collective]) -> None:
        self._tables = {collective.name: collective for collective in collectives}
        self._plugins: list[str] = []
        self._faults: list[str] = []
        self._asked = False

    @property
    def plugins(self) -> list[str]:
        """Which rows each has and a digest of its files: equal on two ranks where the plugins are."""
        self._loaded()
        return self._plugins

    @property
    def faults(self) -> list[str]:
        self._loaded()
        return self._faults

    def load(self, named: Iterable[tuple[str, str]]) -> None:
        """Add plugins by (who asks for it, file or module); `check` raises what is wrong with one."""
        for who, name in named:
            try:
                path, by_op = read(name, self._tables)
            except ValueError as error:
                self._faults.append(f"{who}: {error}")
                continue
            for op, rows in by_op.items():
                self._tables[op] = replace(self._tables[op], algorithms=(*self._tables[op].algorithms, *rows))
            named_rows = [(op, row) for op, rows in by_op.items() for row in rows]
            files = sorted({file for _, row in named_rows for file in native_files(row)})
            digest = sha256(b"".join(sha256(file.read_bytes()).digest() for file in (path, *files))).hexdigest()
            names = " ".join(f"{op}:{row.name}" for op, row in named_rows) or "no algorithm"
            self._plugins.append(f"{path.name} with {names}, digest {digest[:8]}")

    def check(self) -> None:
        for fault in self.faults:
            raise ValueError(fault)

    def _loaded(self) -> dict[str, Collective]:
        if not self._asked:
            self._asked = True  # a plugin that looks into the tables finds ours
            self.load(asked_for())
        return self._tables

    def __getitem__(self, name: str) -> Collective:
        return self._loaded()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._loaded())

    def __len__(self) -> int:
        return len(self._loaded())


def asked_for() -> list[tuple[str, str]]:
    """Return who asks for which file or module: COMMLIB_PLUGINS first, then entry points."""
    of_variable = [(env.PLUGINS.name, name) for name in env.PLUGINS.get()]
    return of_variable + [(f"entry point {e.name}", e.value) for e in sorted(entry_points(group=GROUP))]


def read(name: str, tables: Mapping[str, Collective]) -> tuple[Path, dict[str, tuple[Algorithm, ...]]]:
    """Run a plugin's Python file or module, and check its rows by collective; every fault is a ValueError."""
    try:
        module = load_module(Path(name).expanduser().absolute()) if name.endswith(".py") else import_module(name)
    except SyntaxError as error:
        raise ValueError(f"{error.filename}, line {error.lineno}: {error.msg}") from None
    except Exception as error:  # whatever the plugin's file raises
        raise ValueError(f"plugin {name} cannot be loaded: {one_line(error)}") from error
    path = Path(module.__file__ or name)
    by_op = getattr(module, "ALGORITHMS", None)
    if not isinstance(by_op, Mapping):
        raise ValueError(f'{path} has no ALGORITHMS; give it ALGORITHMS = {{"all_reduce": [Algorithm(…)]}}')
    return path, {op: tuple(_placed(path, op, rows, tables)) for op, rows in by_op.items()}


def _placed(path: Path, op: str, rows: Any, tables: Mapping[str, Collective]) -> Iterator[Algorithm]:
    """Yield rows that name the folder of their native half; ValueError for one that cannot be."""
    if op not in tables:
        raise ValueError(f"{path}: there is no collective {op!r}; there are {', '.join(tables)}")
    if not isinstance(rows, (list, tuple)) or not all(isinstance(row, Algorithm) for row in rows):
        raise ValueError(f"{path}: the rows of {op} are {rows!r:.80}, but must be a list of Algorithm")
    taken = {row.name for row in tables[op].algorithms}
    for row in rows:
        if row.name in taken:
            raise ValueError(f"{path}: {op} has an algorithm {row.name!r} already; give yours another name")
        taken.add(row.name)
        placed = replace(row, folder=str(path.parent))
        if fault := _fault(op, placed):
            raise ValueError(f"{path}: {op} by {row.name!r}: {fault}")
        yield placed


def _fault(op: str, row: Algorithm) -> str | None:
    if row.backend not in ("nccl", "shm", "torch"):
        return f"there is no backend {row.backend!r}; there are nccl, shm and torch"
    if not row.name.isidentifier():
        return "the name must be one of C++: letters, digits and _"
    if row.backend == "torch":
        return None if row.run is not None else "a row of torch needs run="
    if row.function is not None:
        return None if op in FFI_OPS else f"functions of tvm-ffi can do {', '.join(FFI_OPS)}"
    return _fault_of_source(row)


def _fault_of_source(row: Algorithm) -> str | None:
    if row.backend == "nccl" and not row.kernel:
        return "a row of nccl needs kernel=, and its device code next to the Python file; or function="
    (file,) = native_files(row)
    if not file.is_file():
        return f"there is no {file}"
    return "native code takes no path with spaces; move the plugin" if " " in str(file) else None


def native_files(row: Algorithm) -> list[Path]:
    """Return the native half of a plugin's row; of a function of tvm-ffi, what lies there under the row's name."""
    if row.function is not None:
        return sorted(Path(row.folder).glob(f"{row.name}.*"))
    endings = {"shm": ".cc", "nccl": ".cu"}
    return [Path(row.folder, row.name + endings[row.backend])] if row.folder and row.backend in endings else []


def load_natives(collectives: Tables, backend: str, world: World, timeout_s: float) -> None:
    """Compile and load the native halves of a backend's plugins: rank 0 fills the cache; all ranks fail together."""
    rows = [(op, row) for op, spec in collectives.items() for row in spec.rows(backend).values() if row.folder]
    rows = [(op, row) for op, row in rows if row.function is not None or backend == "shm"]
    if not rows:
        return
    failure = _load(rows) if world.rank == 0 else ""
    failure = world.exchange(failure, max(timeout_s, COMPILER_S))[0]
    if not failure and world.rank != 0:
        failure = _load(rows)
    for failed in world.failures(failure, timeout_s):
        raise BuildFailed(failed)


def _load(rows: Iterable[tuple[str, Algorithm]]) -> str:
    try:
        for op, row in rows:
            if row.function is not None:
                _load_function(row.backend, op, row.name, row.function)
            else:
                load_plugin(*native_files(row))
    except BuildFailed as error:
        return str(error)
    return ""


@cache
def _load_function(backend: str, op: str, name: str, make: Callable[[], Any]) -> None:
    try:
        from commlib import ffi  # where tvm-ffi is installed

        ffi.add_algorithm(backend, op, name, make())
    except Exception as error:  # whatever the plugin's function, or a compiler, raises
        raise BuildFailed(f"{op} by {name}: there is no function of tvm-ffi: {error}") from error
