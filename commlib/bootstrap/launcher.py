"""What a launcher tells a rank through the environment, read the same way for every launcher."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from commlib.counts import counted


class Identity(NamedTuple):
    """Who a launcher says this process is: its rank, how many there are, and its number on this host."""

    rank: int
    size: int
    local_rank: int | None = None


def number(environ: Mapping[str, str], name: str) -> int:
    """Read a whole number; the message leaves the value out, so that every rank says the same sentence."""
    try:
        return int(environ[name])
    except ValueError:
        raise ValueError(f"{name} is not a whole number; correct it or unset it") from None


def first_number(environ: Mapping[str, str], *names: str) -> int | None:
    """Read the first of these variables that is set."""
    return next((number(environ, name) for name in names if environ.get(name)), None)


def port(environ: Mapping[str, str], name: str) -> int:
    value = number(environ, name)
    if not 1 <= value <= 65535:
        raise ValueError(f"{name} must be a port from 1 to 65535; correct it or unset it")
    return value


def announced(
    environ: Mapping[str, str], launcher: str, rank: str, size: str, also: tuple[str, ...] = ()
) -> int | None:
    """Return the world size a launcher announces, None if it is not there, ValueError if half of it is."""
    if not environ.get(rank) and not environ.get(size):
        return None
    names = (rank, size, *also)
    missing = [name for name in names if not environ.get(name)]
    if missing:
        present = [name for name in names if environ.get(name)]
        raise ValueError(
            f"{launcher}'s variables are half set: {', '.join(present)} set, {', '.join(missing)} missing; "
            f"set all of them, unset all of them, or name another bootstrap in COMMLIB_BOOTSTRAP"
        )
    total = number(environ, size)
    if total < 1 or not 0 <= number(environ, rank) < total:
        raise ValueError(f"{launcher} started {size}={total} ranks, so {rank} must be from 0 to {total - 1}")
    return total


def identity(environ: Mapping[str, str], rank: str, size: str, local_rank: str) -> Identity:
    """Read which rank this process is from variables that `announced` has checked."""
    who = Identity(number(environ, rank), number(environ, size), first_number(environ, local_rank))
    if who.local_rank is not None and not 0 <= who.local_rank < who.size:
        raise ValueError(
            f"{local_rank} must be from 0 to {who.size - 1} among {counted(who.size, 'rank')}; correct it or unset it"
        )
    return who
