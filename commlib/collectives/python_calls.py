"""The collectives of a backend without native code: the same calls as `_native.Calls`, made of algorithms in Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from inspect import signature
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor

from commlib.backends.base import Backend
from commlib.collectives.spec import Collective

if TYPE_CHECKING:
    from commlib._native import Calls


def python_calls(backend: Backend, collectives: Mapping[str, Collective]) -> Calls:
    """Return calls that run the Python half of the backend's first algorithm of each collective."""
    calls = {name: _call(backend, collective) for name, collective in collectives.items()}
    message = calls.pop("send_recv")
    messages = {"send": partial(message, sends=True), "recv": partial(message, sends=False)}
    return cast("Calls", SimpleNamespace(**calls, **messages, enqueue_barrier=calls["barrier"]))


def _call(backend: Backend, collective: Collective) -> Callable[..., Any]:
    half = next(a.run for a in collective.algorithms if a.backend == backend.name and a.run is not None)
    _, *parameters = signature(half).parameters.values()

    def call(*given: Any, **more: bool) -> Any:
        for parameter, value in zip(parameters, given, strict=False):
            if parameter.name in ("x", "out") and not isinstance(value, Tensor) and value is not parameter.default:
                kind = type(value).__name__
                raise TypeError(f"{parameter.name} of {collective.name} is a {kind}, but must be a torch tensor")
        return backend.run(collective.name, partial(half, backend, *given, **more))

    return call
