"""Arguments of init() and launchers' variables are checked before anything starts."""

from __future__ import annotations

from typing import Any

import pytest

import commlib
from commlib import env
from commlib.bootstrap import connect


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_bytes": -1}, "max_bytes=.*: expected 0 to"),
        ({"max_bytes": 10**400}, "max_bytes=.*: expected 0 to"),
        ({"timeout_s": float("inf")}, "timeout_s=.*: expected a number above 0"),
        ({"timeout_s": float("nan")}, "timeout_s=.*: expected a number above 0"),
        ({"timeout_s": 10**400}, "timeout_s=.*: expected a number above 0"),
        ({"timeout_s": 0}, "timeout_s=.*: expected a number above 0"),
        ({"checked": "maybe"}, "checked=.*: expected 0 or 1"),
        ({"max_sms": -1}, "max_sms=.*: expected a number of multiprocessors"),
        ({"backend": "cuda"}, "backend='cuda' is not known"),
    ],
)
def test_a_wrong_argument_is_refused_before_anything_starts(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        commlib.init(bootstrap="nobody would be asked", **arguments)


@pytest.mark.parametrize(
    "arguments", [{"max_bytes": 1.5}, {"max_sms": 1.5}, {"timeout_s": [1]}, {"plan": 3}, {"backend": None}]
)
def test_an_argument_of_a_wrong_type_is_named(arguments: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=next(iter(arguments))):
        commlib.init(bootstrap="nobody would be asked", **arguments)


@pytest.mark.parametrize("text", ["inf", "1e400", "-1", "nan", "1" + "0" * 400])
def test_a_variable_out_of_range_is_a_value_error_that_names_it(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in (env.MAX_BYTES, env.TIMEOUT_S):
        monkeypatch.setenv(variable.name, text)
        with pytest.raises(ValueError, match=variable.name):
            variable.get()


@pytest.mark.parametrize("port", ["65536", "0", "-1", "http"])
def test_a_port_that_is_none_is_refused(port: str, monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="MASTER_PORT"):
        connect("torchrun", timeout_s=1)
