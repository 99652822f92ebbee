"""What native code chooses for calls on GPUs, with and without a limit of multiprocessors; no GPU is needed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from commlib.collectives import COLLECTIVES
from commlib.collectives.facts import FACTS
from commlib.collectives.told import plan_text, rows_text
from commlib.plan import Plan, Query, shipped_plan
from commlib.plan.plan import HEAD
from commlib.plan.rules import SPARING

ROOT = Path(__file__).resolve().parents[2]
Ask = Callable[[Plan, list[str]], list[str]]


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Ask:
    """Return what asks the compiled table of a plan for two ranks."""
    folder = tmp_path_factory.mktemp("plan_choice")
    program = folder / "plan_choice"
    sources = ["tests/native/plan_choice.cc", "csrc/plan/table.cc", "csrc/plan/row.cc"]
    words = [os.environ.get("CXX", "c++"), "-std=c++17", "-Icsrc/include", "-Icsrc", *sources, "-o", str(program)]
    subprocess.run(words, cwd=ROOT, check=True)
    (folder / "rows").write_text(rows_text("nccl", 2), encoding="utf-8")

    def answers(plan: Plan, calls: list[str]) -> list[str]:
        (folder / "plan").write_text(plan_text(plan, 2, "nccl"), encoding="utf-8")
        given = [str(program), str(folder / "rows"), str(folder / "plan")]
        done = subprocess.run(given, input="\n".join(calls), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return answers


def call(op: str, num_bytes: int, max_sms: int = 0, symmetric: str = "no") -> str:
    return f"op={op} dtype=float32 bytes={num_bytes} symmetric={symmetric} max_sms={max_sms}"


TILES = {"threads": 384, "grain_bytes": 16, "tile_bytes": 16384}


def plan_of(*ranges: dict[str, object]) -> Plan:
    return Plan({**HEAD, "rules": [{"op": "all_gather", "ranges": list(ranges)}]}, "made up")


def test_native_code_and_explain_choose_alike(ask: Ask) -> None:
    ops, limits = ("all_reduce", "all_gather", "broadcast", "all_to_allv"), (0, 8, 16, 24, 100)
    kinds = [(op, 1 << shift, limit) for op in ops for shift in range(30) for limit in limits]
    for name in ("nccl-nvidia-h100-80gb-hbm3", "nccl-nvidia-h200"):
        plan = shipped_plan(name)
        found = [words.split()[0] for words in ask(plan, [call(*kind) for kind in kinds])]
        for (op, size, limit), algorithm in zip(kinds, found, strict=True):
            query = Query(op, size, "float32", "sum", 2)
            assert algorithm == plan.decide(query, FACTS, limit).entry.algorithm, (name, op, size, limit)


def test_a_call_that_spares_the_gpu_takes_the_knee_as_explain_says(ask: Ask) -> None:
    ops, places = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"), ("no", "yes")
    kinds = [(op, 3 << shift, symmetric) for op in ops for shift in range(28) for symmetric in places]
    for name in ("nccl", "nccl-nvidia-h100-80gb-hbm3", "nccl-nvidia-h200"):
        plan = shipped_plan(name)
        found = ask(plan, [call(op, size, SPARING, symmetric) for op, size, symmetric in kinds])
        for (op, size, symmetric), words in zip(kinds, found, strict=True):
            placement = "symmetric" if symmetric == "yes" else "plain"
            entry = plan.decide(Query(op, size, "float32", "sum", 2, placement), FACTS, SPARING).entry
            assert words.split()[0] == entry.algorithm, (name, op, size, placement)
            assert f"blocks={entry.params.get('blocks', '')}" in words, (name, op, size, placement)


@pytest.mark.parametrize(
    ("op", "num_bytes", "algorithm", "blocks"),
    [
        ("all_reduce", 25 << 20, "lsa_pipe_twoshot", 24),
        ("all_gather", 64 << 20, "lsa_pipe_exchange", 16),
        ("reduce_scatter", 256 << 20, "lsa_pipe_exchange", 16),
        ("all_reduce", 4096, "lsa_lamport_oneshot", 128),  # not measured on fewer
    ],
)
def test_the_knees_of_the_shipped_plans_are_on_few_multiprocessors(
    ask: Ask, op: str, num_bytes: int, algorithm: str, blocks: int
) -> None:
    plan = shipped_plan("nccl-nvidia-h100-80gb-hbm3")
    assert ask(plan, [call(op, num_bytes, SPARING)])[0].split()[:2] == [algorithm, f"blocks={blocks}"]


def test_a_knee_is_measured_and_takes_sixteen_multiprocessors_or_none(ask: Ask) -> None:
    usual = {"algorithm": "lsa_oneshot", "params": {"blocks": 132, **TILES}}
    for curve, wanted in (
        ([point(8, "lsa_pipe_exchange", blocks=8), point(24, "lsa_pipe_exchange", blocks=24)], "lsa_pipe_exchange 24"),
        ([point(8, "lsa_pipe_exchange", blocks=8)], "lsa_oneshot 132"),
        ([{**point(16, "lsa_pipe_exchange", blocks=16), "slower": 2.36}], "lsa_pipe_exchange 16"),
        ([{**point(16, "lsa_pipe_exchange", blocks=16), "slower": 2.37}], "lsa_oneshot 132"),  # costs more
        ([], "lsa_oneshot 132"),
    ):
        plan = plan_of({**usual, "curve": curve})
        entry = plan.decide(Query("all_gather", 1 << 24, "float32", "sum", 2), FACTS, SPARING).entry
        words = ask(plan, [call("all_gather", 1 << 24, SPARING)])[0].split()
        assert f"{entry.algorithm} {entry.params['blocks']}" == " ".join(words[:2]).replace("blocks=", "") == wanted
    # What a limited call falls back on was not measured.
    ranges, fallback = [{"algorithm": "nccl_direct"}], [usual]
    plan = Plan({**HEAD, "rules": [{"op": "all_gather", "ranges": ranges, "fallback": fallback}]}, "made up")
    assert ask(plan, [call("all_gather", 1 << 24, SPARING)])[0].startswith("nccl_direct ")


def test_a_kernel_is_cut_down_and_what_cannot_be_gives_way_to_the_nearest_that_can(ask: Ask) -> None:
    plan = plan_of(
        {"max_bytes": 1024, "algorithm": "lsa_ll_oneshot", "params": {"blocks": 8}},
        {"max_bytes": 1 << 20, "algorithm": "nccl_direct"},
        {"algorithm": "lsa_oneshot", "params": {"blocks": 64, **TILES}},
    )
    sizes = (512, 4096, 1 << 19, 1 << 24)
    assert [words.split()[0] for words in ask(plan, [call("all_gather", size, 4) for size in sizes])] == [
        "lsa_ll_oneshot",
        "lsa_ll_oneshot",
        "lsa_oneshot",
        "lsa_oneshot",
    ]
    # NCCL's kernels take 32 at most.
    assert ask(plan, [call("all_gather", 4096, 32)])[0].startswith("nccl_direct")


def test_where_all_there_is_cannot_be_limited_there_is_nothing(ask: Ask) -> None:
    plan = plan_of({"algorithm": "nccl_direct"})
    assert ask(plan, [call("all_gather", 4096, limit) for limit in (0, 8)])[1] == "nothing"


def point(sms: int, algorithm: str, **params: int) -> dict[str, object]:
    return {"sms": sms, "algorithm": algorithm, "params": params, "slower": 0.1}


def test_a_limited_call_takes_what_is_best_on_so_few_as_explain_says(ask: Ask) -> None:
    curve = [
        point(8, "lsa_oneshot", blocks=8, **TILES),
        point(12, "lsa_ll128_oneshot", blocks=12, threads=256),
        point(64, "lsa_oneshot", blocks=64, **TILES),
    ]
    plan = plan_of(
        {"max_bytes": 4096, "algorithm": "lsa_ll_oneshot", "params": {"blocks": 8}},
        {"max_bytes": 1 << 16, "algorithm": "nccl_direct"},
        {"algorithm": "nccl_direct", "curve": curve},
    )
    kinds = [(size, limit) for size in (100, 8192, 1 << 20) for limit in (0, 1, 7, 8, 11, 12, 31, 32, 100)]
    found = ask(plan, [call("all_gather", *kind) for kind in kinds])
    for kind, words in zip(kinds, found, strict=True):
        size, limit = kind
        entry = plan.decide(Query("all_gather", size, "float32", "sum", 2), FACTS, limit).entry
        assert words.split()[0] == entry.algorithm, kind
        assert not entry.params or f"blocks={entry.params['blocks']} " in words, kind
    large = {limit: words.split()[:2] for (size, limit), words in zip(kinds, found, strict=True) if size == 1 << 20}
    assert large[12] == ["lsa_ll128_oneshot", "blocks=12"]
    assert large[11] == large[1] == ["lsa_oneshot", "blocks=8"]
    assert large[32] == large[0]


def test_an_epilogue_goes_by_the_rules_of_a_norm_where_it_is_limited_too(ask: Ask) -> None:
    plan = shipped_plan("nccl-nvidia-h200")
    norms, epilogues = (
        ask(plan, [call(op, 1 << shift, limit) for shift in range(5, 28) for limit in (0, 1, 8)])
        for op in ("all_reduce_rms_norm", "all_reduce_epilogue")
    )
    assert epilogues == norms


def test_what_cannot_be_limited_gives_way_to_its_fallback(ask: Ask) -> None:
    fallback = [
        {"algorithm": "nccl_staged"},
        {"algorithm": "lsa_pipe_exchange", "params": {"blocks": 8}, "align": 16},  # serves no call of 8200 bytes
        {"algorithm": "lsa_oneshot", "params": {"blocks": 64, **TILES}},
    ]
    ranges = [{"max_bytes": 4096, "algorithm": "lsa_ll_oneshot"}, {"algorithm": "nccl_direct"}]
    plan = Plan({**HEAD, "rules": [{"op": "all_gather", "ranges": ranges, "fallback": fallback}]}, "made up")
    limits = ((0, "nccl_direct"), (8, "lsa_oneshot"), (31, "lsa_oneshot"), (40, "nccl_direct"))
    for size, (limit, algorithm) in product((8200, 8192), limits):  # nor is it asked about one that it could serve
        entry = plan.decide(Query("all_gather", size, "float32", "sum", 2), FACTS, limit).entry
        assert ask(plan, [call("all_gather", size, limit)])[0].split()[0] == entry.algorithm == algorithm


def test_a_communicator_with_a_limit_is_told_what_is_best_on_so_few(ask: Ask) -> None:
    curve = [point(8, "lsa_ll128_oneshot", blocks=8), point(16, "lsa_oneshot", blocks=16, **TILES)]
    plan = plan_of({"algorithm": "lsa_oneshot", "params": {"blocks": 132, **TILES}, "curve": curve})
    limited = plan.limited(20, FACTS)
    assert limited.digest == plan.digest  # by it ranks compare what they were given
    assert ask(limited, [call("all_gather", 1 << 20), call("all_gather", 1 << 20, 8)])[0].startswith(
        "lsa_oneshot blocks=16 "
    )
    assert ask(limited, [call("all_gather", 1 << 20, 8)])[0].startswith("lsa_ll128_oneshot blocks=8 ")


def test_symmetric_tensors_have_the_plain_curve_and_what_copy_engines_add_to_it(ask: Ask) -> None:
    curve = [
        {"sms": 8, "algorithm": "lsa_pipe_exchange", "params": {"blocks": 8}, "slower": 1.5},
        {"sms": 16, "algorithm": "lsa_pipe_exchange", "params": {"blocks": 16}, "slower": 0.1},
    ]
    engine = {"sms": 0, "algorithm": "engine_pull", "slower": 0.2}
    usual = {"algorithm": "lsa_oneshot", "params": {"blocks": 132, **TILES}}
    symmetric = [
        {"max_bytes": 1 << 16, "algorithm": "lsa_oneshot"},
        {"max_bytes": 1 << 20, "algorithm": "lsa_oneshot", "curve": [engine]},
        {"algorithm": "engine_pull"},
    ]
    rules = [
        {"op": "all_gather", "ranges": [{**usual, "curve": curve}]},
        {"op": "all_gather", "placement": "symmetric", "ranges": symmetric},
    ]
    plan = Plan({**HEAD, "rules": rules}, "made up")
    small, middle, large = ("lsa_pipe_exchange", 8), ("engine_pull", 0), ("engine_pull", 0)
    few, own = ("lsa_pipe_exchange", 16), ("lsa_oneshot", 132)
    for limit, expected in (
        (4, (small, middle, large)),
        (8, (small, middle, large)),
        (15, (small, middle, large)),
        (16, (few, few, large)),
        (100, (few, few, large)),
        (0, (own, own, large)),
        (132, (own, own, large)),
        (SPARING, (few, few, large)),
    ):
        for size, wanted in zip((1 << 16, 1 << 20, 1 << 24), expected, strict=True):
            query = Query("all_gather", size, "float32", "sum", 2, placement="symmetric")
            entry = plan.decide(query, FACTS, limit).entry
            assert (entry.algorithm, entry.params.get("blocks", 0)) == wanted, (size, limit)
            algorithm, blocks, *_ = ask(plan, [call("all_gather", size, limit, "yes")])[0].split()
            assert (algorithm, blocks) == (wanted[0], f"blocks={wanted[1]}"), (size, limit)
    # On plain tensors the symmetric rules say nothing.
    assert ask(plan, [call("all_gather", 1 << 20, 8)])[0].startswith("lsa_pipe_exchange blocks=8 ")
    said = plan.explain("all_gather", 1 << 20, "float32", world=2, placement="symmetric", facts=FACTS, max_sms=8)
    assert (said.rule, said.sms, said.high_bytes) == ("rules[1][1].curve[0]", 0, 1 << 20)
    assert said.curve == ((0, 0.2), (8, 1.5), (16, 0.1), (132, 0.0))
    # A communicator's limit leaves symmetric ranges to the plain rules, as far as these decide.
    limited = plan.limited(8, FACTS)
    assert ask(limited, [call("all_gather", 1 << 20, 0, "yes")])[0].startswith("lsa_pipe_exchange blocks=8 ")


def test_of_plain_and_symmetric_points_that_take_equally_long_the_plain_one_is_first(ask: Ask) -> None:
    usual = {"algorithm": "lsa_oneshot", "params": {"blocks": 132, **TILES}}
    plain = {"op": "all_gather", "ranges": [{**usual, "curve": [point(8, "lsa_pipe_exchange", blocks=8)]}]}
    ranges = [{"algorithm": "lsa_oneshot", "curve": [point(0, "engine_pull")]}]
    plan = Plan({**HEAD, "rules": [plain, {"op": "all_gather", "placement": "symmetric", "ranges": ranges}]}, "made up")
    query = Query("all_gather", 1 << 20, "float32", "sum", 2, placement="symmetric")
    for limit, algorithm in ((4, "engine_pull"), (8, "lsa_pipe_exchange")):
        found = ask(plan, [call("all_gather", 1 << 20, limit, "yes")])[0].split()[0]
        assert found == plan.decide(query, FACTS, limit).entry.algorithm == algorithm


def test_a_symmetric_rule_that_leaves_a_call_to_the_plain_ones_is_not_cut_down_itself(ask: Ask) -> None:
    rules = [
        {"op": "all_gather", "ranges": [{"algorithm": "lsa_pipe_exchange", "params": {"blocks": 32}}]},
        {"op": "all_gather", "placement": "symmetric", "ranges": [{"algorithm": "lsa_oneshot"}]},
    ]
    plan = Plan({**HEAD, "rules": rules}, "made up")
    entry = plan.decide(Query("all_gather", 1 << 20, "float32", "sum", 2, placement="symmetric"), FACTS, 8).entry
    assert entry.algorithm == "lsa_pipe_exchange"
    assert ask(plan, [call("all_gather", 1 << 20, 8, "yes")])[0].startswith("lsa_pipe_exchange blocks=32 ")


def test_the_shipped_plans_name_something_for_every_limited_call_but_what_nccl_alone_carries(ask: Ask) -> None:
    for name in ("nccl", "nccl-nvidia-h100-80gb-hbm3", "nccl-nvidia-h200"):
        plan = shipped_plan(name)
        for op, spec in COLLECTIVES.items():
            if op in ("barrier", "send_recv"):
                continue
            found = ask(plan, [call(op, 1 << shift, 8) for shift in range(4, 30)])
            can = any(row.backend == "nccl" and row.kernel for row in spec.algorithms)
            assert all((words != "nothing") == can for words in found), (name, op)
