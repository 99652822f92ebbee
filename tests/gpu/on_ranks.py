"""Tests whose body runs on every rank."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any

from commlib.communicator import Communicator
from commlib.testing import Ranks


def on_every_rank(body: Callable[..., str | list[Any] | bool]) -> Callable[..., None]:
    """Make a test of what each rank does with its communicator.

    It returns what is wrong, so "" or [] if nothing is; or whether all is right.
    """

    def test(nccl_ranks: Ranks, **given: Any) -> None:
        answers = nccl_ranks.run(run_body, body.__module__, body.__name__, given)
        wrong = [answer for answer in answers if answer not in ("", [], True)]
        assert not wrong, wrong

    _, *others = inspect.signature(body).parameters.values()
    ranks = inspect.Parameter("nccl_ranks", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    test.__signature__ = inspect.Signature([ranks, *others])  # type: ignore[attr-defined]
    test.__module__, test.__name__, test.__doc__ = body.__module__, body.__name__, body.__doc__
    test.body = body  # type: ignore[attr-defined]
    return test


def run_body(comm: Communicator, module: str, name: str, given: dict[str, Any]) -> Any:
    return getattr(import_module(module), name).body(comm, **given)
