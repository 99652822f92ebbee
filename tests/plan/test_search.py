"""Which plan is taken, what ships, and what the environment pins."""

import json
import logging
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from commlib.collectives import COLLECTIVES, algorithm_names
from commlib.core.setup import find_plan, override, unplanned
from commlib.plan import Plan
from commlib.plan.search import check_names, driver_of, shipped, shipped_plan, slug, user_path
from commlib.plan.table import plan_text
from commlib.tools.timing import fingerprint
from tests.plan.documents import HEAD, tuned

Patch = pytest.MonkeyPatch


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: Patch) -> Path:
    """Where the plan of this user for this machine and two ranks on shm is looked for."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("COMMLIB_PLAN", raising=False)
    path = user_path("shm", fingerprint("shm")["device"], 2)
    path.parent.mkdir(parents=True)
    return path


@pytest.mark.parametrize("backend", ["shm", "torch"])
@pytest.mark.parametrize("world", [1, 2, 3, 8, 64])
def test_shipped_plans_have_a_known_algorithm_for_every_size(backend: str, world: int) -> None:
    plan, known = shipped_plan(backend).completed(unplanned(backend)), algorithm_names(backend)
    sizes = (0, 1, 8192, 8193, 1 << 20, 1 << 40)
    for op, placement, num_bytes in product(COLLECTIVES, ("plain", "symmetric"), sizes):
        assert plan.explain(op, num_bytes, world=world, placement=placement).algorithm in known[op]


def test_without_a_rule_a_collective_runs_the_first_row_of_its_table(mine: Path, monkeypatch: Patch) -> None:
    monkeypatch.setitem(COLLECTIVES._tables, "another", replace(COLLECTIVES["broadcast"], name="another"))
    plans = {backend: find_plan(backend, "auto", 2) for backend in ("shm", "torch", "nccl_direct")}
    plans["nccl"] = unplanned("nccl")
    names = {name: plan.rules_of(2)[-1].ranges[0].algorithm for name, plan in plans.items()}
    direct = {"torch": "torch_direct", "nccl_direct": "nccl_direct", "nccl": "nccl_direct"}
    assert names == {"shm": "shm_oneshot", **direct}


def test_a_plan_of_the_users_is_found_by_backend_device_and_world(mine: Path) -> None:
    assert mine.name == f"shm-{slug(fingerprint('shm')['device'])}-2.json"
    mine.write_text(tuned())
    found = find_plan("shm", "auto", 2)
    assert found.explain("all_reduce", 8, world=2).source == str(mine)
    assert found.explain("barrier", 0, world=2).source == "plans/shm.json"  # what it does not cover
    assert (found.fit.score, found.fit.differences) == (found.fit.total, ())
    assert find_plan("shm", "auto", 3).source == "plans/shm.json"


def test_the_order_is_argument_variable_user_shipped(mine: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    mine.write_text(tuned())
    named, passed = tmp_path / "named.json", tmp_path / "passed.json"
    for path in (named, passed):
        path.write_text(tuned())
    assert find_plan("shm", "auto", 2).source == str(mine)
    monkeypatch.setenv("COMMLIB_PLAN", str(named))
    assert find_plan("shm", "auto", 2).source == str(named)
    assert find_plan("shm", str(passed), 2).source == str(passed)


UNFIT: dict[str, tuple[Any, str]] = {
    "truncated": (lambda: tuned()[:200], "take a whole copy"),
    "of another device": (lambda: tuned(device="Z80"), "was tuned for device Z80, but this is"),
    "of another backend": (lambda: tuned(backend="nccl"), "was tuned for backend nccl, but this is shm"),
    "for other ranks": (lambda: tuned().replace("2,\n    2", "3,\n    3"), "has no rule for 2 ranks"),
    "with an unknown algorithm": (lambda: tuned().replace("shm_twoshot", "shm_magic"), "it has shm_oneshot"),
    "with an unknown op": (lambda: tuned().replace("all_reduce", "all_reduse"), "no op 'all_reduse'; there are all_"),
}


@pytest.mark.parametrize("case", UNFIT)
def test_an_unfit_plan_is_ignored_with_a_warning_when_found_and_an_error_when_asked_for(
    mine: Path, monkeypatch: Patch, caplog: pytest.LogCaptureFixture, case: str
) -> None:
    text, reason = UNFIT[case]
    mine.write_text(text())
    with caplog.at_level(logging.INFO, "commlib"):
        assert [find_plan("shm", "auto", 2).source for _ in range(2)] == ["plans/shm.json"] * 2
    (record,) = caplog.records  # once, however often it is found
    assert record.levelname == "WARNING"
    assert str(mine) in record.message and reason in record.message
    with pytest.raises(ValueError, match=reason):
        find_plan("shm", mine, 2)
    monkeypatch.setenv("COMMLIB_PLAN", str(mine))
    with pytest.raises(ValueError, match=reason):
        find_plan("shm", "auto", 2)


@pytest.mark.parametrize("head", [{"fingerprint": {"backend": "nccl", "device": "Z80"}}, {}])
def test_of_two_backends_a_plan_is_for_the_one_that_has_its_algorithms(mine, monkeypatch, head) -> None:
    rule = {"op": "all_reduce", "ranges": [{"algorithm": "lsa_oneshot"}]}
    path = mine.with_name("of_gpus.json")
    path.write_text(json.dumps({**HEAD, **head, "rules": [rule]}))
    monkeypatch.setenv("COMMLIB_PLAN", str(path))
    monkeypatch.setenv("COMMLIB_ALGORITHM", "barrier:shm_oneshot,all_gather:lsa_oneshot")
    found = find_plan("shm", "auto", 2, ["nccl"])
    assert found.source == find_plan("shm", Plan.load(path), 2, ["nccl"]).source == "plans/shm.json"
    assert override(found, "shm", ["nccl"]).pinned == {"barrier": "shm_oneshot"}
    with pytest.raises(ValueError, match=r"was tuned for backend nccl|no algorithm 'lsa_oneshot' on shm"):
        find_plan("shm", "auto", 2)
    with pytest.raises(ValueError, match="all_gather has no algorithm 'lsa_oneshot' on shm"):
        override(found, "shm")
    path.write_text(path.read_text().replace("lsa_oneshot", "lsa_magic"))
    with pytest.raises(ValueError, match=r"was tuned for backend nccl|no algorithm 'lsa_magic' on shm"):
        find_plan("shm", "auto", 2, ["nccl"])


def test_soft_keys_that_differ_are_told_once(mine: Path, caplog: pytest.LogCaptureFixture) -> None:
    mine.write_text(tuned(torch="1.0"))
    with caplog.at_level(logging.INFO, "commlib"):
        assert [find_plan("shm", "auto", 2).source for _ in range(2)] == [str(mine)] * 2
    (record,) = caplog.records
    assert record.levelname == "INFO"
    assert f"plan {mine} was tuned for torch 1.0, here {fingerprint()['torch']} (match 5/6)" == record.message


def test_a_variant_of_a_backend_takes_no_plan_of_the_backend(mine: Path) -> None:
    device = fingerprint("nccl")["device"]
    rule = {"op": "all_reduce", "ranges": [{"algorithm": "lsa_oneshot"}]}
    for name in ("nccl", "nccl_direct"):
        document = {**HEAD, "fingerprint": {"backend": name, "device": device}, "rules": [rule]}
        user_path(name, device, 2).write_text(json.dumps(document))
    assert find_plan("nccl", "auto", 2).source == str(user_path("nccl", device, 2))
    assert find_plan("nccl_direct", "auto", 2).source == "plans/nccl_direct.json"


def test_the_device_is_the_gpu_where_the_backend_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, answer in {"is_available": True, "get_device_name": "NVIDIA H200", "device_count": 8}.items():
        monkeypatch.setattr(torch.cuda, name, lambda answer=answer: answer)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 28, 9))
    of_gpus = fingerprint("nccl_direct")
    assert (of_gpus["backend"], slug(of_gpus["device"]), of_gpus["nccl"]) == ("nccl_direct", "nvidia-h200", "2.28.9")
    assert Plan({**HEAD, "fingerprint": of_gpus, "rules": []}, "here").fingerprint == of_gpus
    of_cpus = fingerprint("shm")
    assert (of_cpus["device"], "gpu" in of_cpus, "nccl" in of_cpus) == (of_cpus["cpu"], False, False)


def test_the_driver_is_read_from_either_kernel_module() -> None:
    for kind in ("Open Kernel Module for x86_64", "x86_64 Kernel Module"):
        assert driver_of(f"NVRM version: NVIDIA UNIX {kind}  580.95.05  Tue Sep 23\nGCC version: 12.2\n") == "580.95.05"
    assert driver_of("") is None


@pytest.mark.parametrize("name", shipped())
def test_shipped_plans_name_what_there_is(name: str) -> None:
    plan = shipped_plan(name)
    backend = plan.document.get("fingerprint", {}).get("backend", name)
    check_names(plan, backend)
    of = backend.partition("_")[0]
    for world in (1, 2, 3, 4, 8):
        assert plan_text(plan.rules_of(world), of)  # each parameter is one of its row's, within its bounds


def test_a_wrong_pin_is_refused_with_the_valid_names(monkeypatch: Patch) -> None:
    for pins, reason in (
        ("all_reduce", "expected collective:algorithm"),
        ("all_reduce:a,all_reduce:b", "named twice"),
        ("all_reduse:shm_oneshot", "no collective 'all_reduse'; there are all_reduce"),
        ("all_reduce:lsa_oneshot", "all_reduce has no algorithm 'lsa_oneshot' on shm; it has shm_oneshot"),
    ):
        monkeypatch.setenv("COMMLIB_ALGORITHM", pins)
        with pytest.raises(ValueError, match=reason):
            override(shipped_plan("shm"), "shm")


def test_a_plan_of_a_device_serves_numbers_of_ranks_that_were_not_tuned() -> None:
    plan = shipped_plan("nccl-nvidia-h200")
    for world, source in ((2, "plans/nccl-nvidia-h200.json"), (8, "plans/nccl.json")):
        assert plan.explain("all_gather", 4096, world=world, mode="graph").source == source
    assert plan.explain("barrier", 0, world=2).source == "plans/nccl.json"
    largest = plan.explain("all_gather", 1 << 40, "bfloat16", world=2, mode="graph").algorithm
    assert largest.startswith("lsa_")  # beyond what was measured, too
