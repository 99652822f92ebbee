"""Entry points: nothing happens unless COMMLIB_ENGINES names the engine."""

import os
import subprocess
import sys
from importlib.metadata import entry_points
from types import SimpleNamespace
from unittest import mock

import pytest

from commlib import entry_points as entry_points_of_engines
from commlib import env
from commlib.engines import custom_all_reduce

GROUPS = {"vllm.general_plugins": "vllm", "sglang.srt.plugins": "sglang"}


@pytest.mark.parametrize("group", GROUPS)
def test_an_engine_that_loads_the_plugin_changes_nothing_without_the_variable(group: str) -> None:
    (entry,) = (entry for entry in entry_points(group=group) if entry.name == "commlib")
    code = f"""
import sys
from importlib.metadata import EntryPoint
EntryPoint({entry.name!r}, {entry.value!r}, {group!r}).load()()
ours = [name for name in sys.modules if name.startswith("commlib.engines")]
assert not ours and "torch" not in sys.modules, ours
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_engine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMMLIB_ENGINES", "vLLM, sglang")
    assert env.ENGINES.get() == ("vllm", "sglang")
    monkeypatch.setenv("COMMLIB_ENGINES", "vllm,trtllm")
    with pytest.raises(ValueError, match=r"COMMLIB_ENGINES.*vllm, sglang"):
        env.ENGINES.get()


@pytest.mark.parametrize("engines", ["vlm", "vllm"])  # misspelt; a vLLM that lacks what we replace, here altogether
def test_a_server_starts_whatever_goes_wrong_and_is_warned(monkeypatch, caplog, engines) -> None:
    monkeypatch.setenv("COMMLIB_ENGINES", engines)
    monkeypatch.setitem(sys.modules, "vllm", None)
    entry_points_of_engines.vllm()
    assert "vllm stays on its own path: " in caplog.text
    monkeypatch.setenv("COMMLIB_ENGINES", "vllm")
    for error in (ImportError, AttributeError, ValueError):
        monkeypatch.setattr(entry_points_of_engines, "import_module", mock.Mock(side_effect=error("it lacks a part")))
        entry_points_of_engines.vllm()
    assert caplog.text.count("it lacks a part") == 3


@pytest.mark.parametrize("of_the_user", ["", "0"])
def test_sglang_s_processes_get_symmetric_memory_unless_the_user_says_otherwise(monkeypatch, of_the_user) -> None:
    hooks = mock.Mock()
    monkeypatch.setitem(sys.modules, "sglang.srt.plugins.hook_registry", hooks)
    monkeypatch.setitem(sys.modules, "sglang.version", SimpleNamespace(__version__="0.5.23"))
    monkeypatch.setenv("COMMLIB_ENGINES", "sglang")
    monkeypatch.setenv("NCCL_CUMEM_ENABLE", of_the_user)
    if not of_the_user:
        monkeypatch.delenv("NCCL_CUMEM_ENABLE")
    entry_points_of_engines.sglang()
    assert os.environ["NCCL_CUMEM_ENABLE"] == (of_the_user or "1")
    assert hooks.HookRegistry.register.call_count == 3


def test_all_reduces_are_taken_from_a_vllm_whose_passes_cannot_be_imported(monkeypatch, caplog) -> None:
    class Own:
        SIZES = (2, 4)

        def __init__(self, group, device):
            self.sizes = own.CustomAllreduce.SIZES

    own = SimpleNamespace(CustomAllreduce=Own)
    gpus = SimpleNamespace(is_cpu=lambda: False, is_cuda=lambda: True)
    envs = SimpleNamespace(environment_variables={})
    fakes = {"": {"__version__": "0.32.0", "envs": envs}, ".platforms": {"current_platform": gpus}}
    fakes[".distributed.device_communicators"] = {"custom_all_reduce": own}
    for name, parts in fakes.items():
        monkeypatch.setitem(sys.modules, f"vllm{name}", SimpleNamespace(**parts))
    monkeypatch.setenv("COMMLIB_ENGINES", "vllm")
    entry_points_of_engines.vllm()
    monkeypatch.setattr(custom_all_reduce, "_communicator", lambda *_: None)
    group_we_do_not_serve = own.CustomAllreduce(None, "cpu")
    assert type(group_we_do_not_serve) is Own and group_we_do_not_serve.sizes == (2, 4)
    monkeypatch.setattr(custom_all_reduce, "_communicator", lambda *_: mock.Mock())
    assert type(own.CustomAllreduce(None, "cpu")) is custom_all_reduce.CustomAllReduce
    assert "norms after an all_reduce are not fused: " in caplog.text
    assert "stays on its own path" not in caplog.text
