"""Tests that run on live ranks: each rank makes the calls and asserts what it sees."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any

Test = Callable[..., Any]


def on_ranks(world: int | None = None, fixture: str = "shm_ranks") -> Callable[[Test], Test]:
    """Have a test run on every rank of a fixture, or the first `world`, each with its `comm`."""

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        def run(**given: Any) -> None:
            given.pop(fixture).run(on_this_rank, test.__module__, test.__name__, given, world=world)

        comm, *others = inspect.signature(test).parameters.values()
        run.__signature__ = inspect.Signature([comm.replace(name=fixture), *others])  # type: ignore[attr-defined]
        return run

    return decorate


def on_this_rank(comm: Any, module: str, name: str, given: dict[str, Any]) -> None:
    getattr(import_module(module), name).__wrapped__(comm, **given)
