"""Every environment variable commlib reads: name, type, default and help, in one table."""

from __future__ import annotations

import math
import operator
import os
import reprlib
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Variable(Generic[T]):
    """One variable; `get()` parses it now, so a test may change the environment at any time."""

    name: str
    parse: Callable[[Any], T]  # of a string, or of an argument of init()
    default: T
    help: str
    internal: bool = False
    secret: bool = False  # its value is never shown

    def is_set(self) -> bool:
        return bool(os.environ.get(self.name))

    def get(self) -> T:
        """Return the parsed value, or the default when the variable is unset or empty."""
        text = os.environ.get(self.name, "")
        return self._parsed(text, f"{self.name}={text!r}") if text else self.default

    def resolve(self, value: object, argument: str) -> T:
        """Return an argument, checked as the variable is; for None, what the variable says."""
        return self.get() if value is None else self._parsed(value, f"{argument}={reprlib.repr(value)}")

    def _parsed(self, value: object, what: str) -> T:
        try:
            return self.parse(value)
        except (ValueError, TypeError) as error:
            raise type(error)(f"{what}: {error}; {self.help}") from None


PREFIX = "COMMLIB_"
LONGEST_S = 1e9  # 31 years: in nanoseconds it fits 64 bits
MAX_ADDRESS_BYTES = 1 << 46  # an address space has 2^47


def _flag(value: Any) -> bool:
    text = str(value).lower()
    if text not in ("1", "true", "on", "0", "false", "off"):
        raise ValueError("expected 0 or 1")
    return text in ("1", "true", "on")


def _seconds(text: Any) -> float:
    try:
        value = float(text)
    except (ValueError, OverflowError):
        value = math.inf
    if not 0 < value <= LONGEST_S:
        raise ValueError(f"expected a number above 0 and up to {LONGEST_S:g}")
    return value


def _memory(size: Any) -> int:
    value = parse_bytes(size) if isinstance(size, str) else operator.index(size)
    if not 0 <= value <= MAX_ADDRESS_BYTES:
        raise ValueError(f"expected 0 to {MAX_ADDRESS_BYTES} bytes")
    return value


def _multiprocessors(number: Any) -> int:
    if isinstance(number, str):
        number = int(number) if number.strip().isdecimal() else -1
    value = operator.index(number)
    if value < 0:
        raise ValueError("expected a number of multiprocessors, or 0 for no limit")
    return value


def _one_of(*names: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in names:
            raise ValueError(f"expected one of {', '.join(names)}")
        return text

    return parse


def _pairs(text: str) -> dict[str, str]:
    pairs = [tuple(part.strip() for part in pair.split(":")) for pair in text.split(",")]
    if any(len(pair) != 2 or not all(pair) for pair in pairs):
        raise ValueError("expected collective:algorithm, or several of these separated by commas")
    algorithms = {pair[0]: pair[1] for pair in pairs}
    if len(algorithms) < len(pairs):
        raise ValueError("a collective is named twice")
    return algorithms


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in text.replace(":", ",").split(",") if name.strip()))


def _engines(text: str) -> tuple[str, ...]:
    names = _names(text.lower())
    if not {*names} <= {"vllm", "sglang"}:
        raise ValueError("expected vllm, sglang or both")
    return names


def parse_bytes(text: str) -> int:
    """Read '4096', '64K', '8M' or '1G' (binary units, as nccl-tests reads them)."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    number = text.strip().upper().removesuffix("B").removesuffix("I")
    scale = units.get(number[-1:], 1)
    digits = number[:-1] if scale > 1 else number
    try:
        value = float(digits) * scale
    except ValueError:
        raise ValueError(f"{text!r} is not a size; write bytes or use K, M, G (1K = 1024)") from None
    if not 0 <= value < math.inf or value != int(value):
        raise ValueError(f"{text!r} is not a whole number of bytes")
    return int(value)


BACKEND = Variable(
    "COMMLIB_BACKEND", _one_of("auto", "nccl", "shm", "torch"), "auto", "backend of init(): auto, nccl, shm or torch"
)
BOOTSTRAP = Variable(
    "COMMLIB_BOOTSTRAP",
    _one_of("auto", "torchrun", "mpi", "slurm", "single"),
    "auto",
    "who started the ranks: auto, torchrun (also for `commlib run`), mpi, slurm or single",
)
HOST = Variable(
    "COMMLIB_HOST",
    str,
    "",
    "name of the host that this rank counts as on; ranks with different names share no memory; docs/hosts.md",
)
TIMEOUT_S = Variable("COMMLIB_TIMEOUT_S", _seconds, 300.0, "deadline of every wait for other ranks, in seconds")
CHECK = Variable(
    "COMMLIB_CHECK", _flag, False, "1: compare operation, dtype, count and root on all ranks before each call"
)
GUARD = Variable(
    "COMMLIB_GUARD",
    _one_of("off", "nan", "crc"),
    "off",
    "nan: the first call whose tensors hold NaN is an error; crc: that whose result differs between ranks; slow",
)
CALL_SITES = Variable(
    "COMMLIB_CALL_SITES", _flag, False, "1: keep the file and line of every call for `commlib debug`; 2 µs a call"
)
METRICS = Variable(
    "COMMLIB_METRICS",
    str,
    "",
    "file for Prometheus that each rank writes every 5 s; {rank} in the name, else the suffix .RANK, tells them apart",
)
PLAN = Variable("COMMLIB_PLAN", str, "", "path of the plan file that rank 0 loads instead of searching for one")
ALGORITHM: Variable[dict[str, str]] = Variable(
    "COMMLIB_ALGORITHM",
    _pairs,
    {},
    "overrides the plan for some collectives, for experiments: all_reduce:shm_twoshot,barrier:shm_oneshot",
)
PLUGINS: Variable[tuple[str, ...]] = Variable(
    "COMMLIB_PLUGINS",
    _names,
    (),
    "plugins: Python files (.py) or modules with algorithms of your own, separated by commas; docs/extending.md",
)
ENGINES: Variable[tuple[str, ...]] = Variable(
    "COMMLIB_ENGINES",
    _engines,
    (),
    "engines whose communicators come from commlib: vllm, sglang, or both separated by a comma; docs/vllm.md",
)
TORCH_DEFAULT = Variable(
    "COMMLIB_TORCH_DEFAULT",
    _flag,
    False,
    "1: commlib is the default backend of torch.distributed for the devices it serves; docs/torch_distributed.md",
)
MAX_BYTES = Variable("COMMLIB_MAX_BYTES", _memory, 1 << 28, "size of each rank's symmetric arena (K, M, G allowed)")
MAX_SMS = Variable(
    "COMMLIB_MAX_SMS", _multiprocessors, 0, "multiprocessors of its GPU that a call takes at most; 0: no limit"
)
ISA = Variable(
    "COMMLIB_ISA",
    _one_of("auto", "v2", "v3", "v4"),
    "auto",
    "x86-64 level of the reduce kernels and of the prefix compare on the CPU: auto, v2, v3 or v4",
)
LIBRARY = Variable("COMMLIB_LIBRARY", str, "", "path of the native library to load instead of the installed one")
CACHE_DIR = Variable(
    "COMMLIB_CACHE_DIR",
    str,
    "~/.cache/commlib",
    "folder for compiled GPU kernels and plugins; the default is $XDG_CACHE_HOME/commlib if XDG_CACHE_HOME is set",
)
TRACEBACK = Variable("COMMLIB_TRACEBACK", _flag, False, "1: commands show tracebacks instead of one-line errors")
LOG = Variable(
    "COMMLIB_LOG",
    _one_of("warning", "info", "debug"),
    "warning",
    "info: show what init() decided; debug: also the algorithm of each kind of call; docs/operations.md",
)
SECRET = Variable(
    "COMMLIB_SECRET",
    str,
    "",
    "secret of a job past one host, the same on all ranks, which sign with it what they put into a TCP store",
    secret=True,
)
JOB = Variable("COMMLIB_JOB", str, "", "set by `commlib run`: tells its jobs apart", internal=True)

VARIABLES: tuple[Variable[Any], ...] = tuple(value for value in globals().values() if isinstance(value, Variable))


def foreign(name: str) -> str:
    """Return a variable that belongs to another library (NCCL_…): read to explain it."""
    return os.environ.get(name, "")


def hides_gpus() -> bool:
    """Say whether CUDA_VISIBLE_DEVICES leaves this process no GPU."""
    return os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")


def unknown() -> list[str]:
    """Return the COMMLIB_ names in the environment that nothing reads: probably misspelt."""
    known = {variable.name for variable in VARIABLES}
    return sorted(name for name in os.environ if name.startswith(PREFIX) and name not in known)


def describe_unknown(name: str) -> str:
    """Say that nothing reads a variable, and which one was most likely meant."""
    ours = [variable.name.removeprefix(PREFIX) for variable in VARIABLES if not variable.internal]
    near = get_close_matches(name.removeprefix(PREFIX), ours, 1)
    meant = f"did you mean {PREFIX}{near[0]}?" if near else "docs/environment.md lists all"
    return f"the environment variable {name} is not known; {meant}"


def settings() -> dict[str, str]:
    """Return what is set and changes a measurement; never the whole environment, which holds secrets."""
    ours = [v.name for v in VARIABLES if not v.internal and v not in (METRICS, PLAN, LIBRARY, CACHE_DIR, LOG, SECRET)]
    return {name: os.environ[name] for name in [*ours, "OMP_NUM_THREADS"] if os.environ.get(name)}
