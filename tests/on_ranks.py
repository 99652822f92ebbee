"""Tests that run on live ranks: each rank makes the calls and asserts what it sees."""

import functools
import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any

Test = Callable[..., Any]
NOTHING_WRONG = (None, "", [], True)


def on_ranks(world: int | None = None, fixture: str = "shm_ranks") -> Callable[[Test], Test]:
    """Have a test run on every rank of a fixture, or the first `world`, each with its `comm`.

    A parameter `world` of the test counts more. It may return what is wrong, "" or [] if nothing is; or whether all is
    right.
    """

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        def run(**arguments: Any) -> None:
            ranks = arguments.pop(fixture)
            size = arguments.get("world", world)
            answers = ranks.run(on_this_rank, test.__module__, test.__name__, arguments, world=size)
            wrong = [answer for answer in answers if answer not in NOTHING_WRONG]
            assert not wrong, wrong

        comm, *others = inspect.signature(test).parameters.values()
        run.__signature__ = inspect.Signature([comm.replace(name=fixture), *others])  # type: ignore[attr-defined]
        return run

    return decorate


def on_this_rank(comm: Any, module: str, name: str, arguments: dict[str, Any]) -> Any:
    return getattr(import_module(module), name).__wrapped__(comm, **arguments)
