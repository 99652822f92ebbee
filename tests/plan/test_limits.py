"""What runs on GPUs with and without a limit of multiprocessors; no GPU is needed."""

from itertools import product

import pytest

from commlib.collectives import COLLECTIVES
from commlib.native import library
from commlib.plan import Plan
from commlib.plan.rules import SPARING, Query
from commlib.plan.search import shipped_plan
from commlib.plan.table import Table, plan_text, rows_text
from tests.plan.documents import plan_of as plan_with

Call = tuple[str, int, int, str]  # its operation, bytes, limit and placement
NCCL = ("nccl", "nccl-nvidia-h100-80gb-hbm3", "nccl-nvidia-h200")
NOTHING = ("nothing", 0)


def ask(plan: Plan, calls: list[Call], limit: int = 0) -> list[tuple[str, int]]:
    """Return the algorithm of each call of two ranks, whose communicator may have a limit, and its blocks."""
    table, answers = Table(plan, 2, max_sms=limit), []
    for op, num_bytes, max_sms, placement in calls:
        query = Query(op, num_bytes, "float32", "sum", 2, placement)
        try:
            why = table.explain(query, max(max_sms, 0), max_sms == SPARING)
        except ValueError:
            answers.append(NOTHING)
            continue
        defaults = {param.name: param.default for param in COLLECTIVES[op].algorithm(why.algorithm).params}
        answers.append((why.algorithm, {"blocks": 0, **defaults, **why.params}["blocks"]))
    return answers


def gather(num_bytes: int, max_sms: int = 0, placement: str = "plain") -> Call:
    return "all_gather", num_bytes, max_sms, placement


TILES = {"threads": 384, "grain_bytes": 16, "tile_bytes": 16384}
USUAL = {"algorithm": "lsa_oneshot", "params": {"blocks": 132, **TILES}}


def plan_of(*ranges: dict[str, object], **more: object) -> Plan:
    return plan_with({"op": "all_gather", "ranges": list(ranges), **more})


def point(sms: int, algorithm: str, slower: float = 0.1, **params: int) -> dict[str, object]:
    return {"sms": sms, "algorithm": algorithm, "params": params, "slower": slower}


def pipe(blocks: int, slower: float = 0.1) -> dict[str, object]:
    return point(blocks, "lsa_pipe_exchange", slower, blocks=blocks)


@pytest.mark.parametrize(
    ("op", "num_bytes", "chosen"),
    [
        ("all_reduce", 25 << 20, ("lsa_pipe_twoshot", 24)),
        ("all_gather", 64 << 20, ("lsa_pipe_exchange", 16)),
        ("reduce_scatter", 256 << 20, ("lsa_pipe_exchange", 16)),
        ("all_reduce", 4096, ("lsa_lamport_oneshot", 128)),  # not measured on fewer
    ],
)
def test_the_knees_of_a_shipped_plan_are_on_few_multiprocessors(op: str, num_bytes: int, chosen: object) -> None:
    assert ask(shipped_plan(NCCL[1]), [(op, num_bytes, SPARING, "plain")]) == [chosen]


def test_a_knee_is_measured_and_takes_sixteen_multiprocessors_or_none() -> None:
    for curve, wanted in (
        ([pipe(8), pipe(24)], ("lsa_pipe_exchange", 24)),
        ([pipe(8)], ("lsa_oneshot", 132)),
        ([pipe(16, 2.36)], ("lsa_pipe_exchange", 16)),
        ([pipe(16, 2.37)], ("lsa_oneshot", 132)),  # costs more
        ([], ("lsa_oneshot", 132)),
    ):
        assert ask(plan_of({**USUAL, "curve": curve}), [gather(1 << 24, SPARING)]) == [wanted]
    # What a limited call falls back on was not measured.
    plan = plan_of({"algorithm": "nccl_direct"}, fallback=[USUAL])
    assert ask(plan, [gather(1 << 24, SPARING)])[0][0] == "nccl_direct"


def test_a_kernel_is_cut_down_and_what_cannot_be_gives_way_to_the_nearest_that_can() -> None:
    def plan_with_ends(first: int, second: int) -> Plan:
        return plan_of(
            {"max_bytes": first, "algorithm": "lsa_ll_oneshot", "params": {"blocks": 8}},
            {"max_bytes": second, "algorithm": "nccl_direct"},
            {"algorithm": "lsa_oneshot", "params": {"blocks": 64, **TILES}},
        )

    plan = plan_with_ends(1024, 1 << 20)
    answers = ask(plan, [gather(size, 4) for size in (512, 4096, 1 << 19, 1 << 24)])
    assert [algorithm for algorithm, _ in answers] == ["lsa_ll_oneshot"] * 2 + ["lsa_oneshot"] * 2
    # NCCL's kernels take 32 at most.
    assert ask(plan, [gather(4096, 32)])[0][0] == "nccl_direct"
    # One more than the bytes is compared: 15 / 8 is less than 8 / 4.
    assert ask(plan_with_ends(3, 13), [gather(7, 4)])[0][0] == "lsa_oneshot"


def test_where_all_there_is_cannot_be_limited_there_is_nothing() -> None:
    assert ask(plan_of({"algorithm": "nccl_direct"}), [gather(1 << 20, 8)]) == [NOTHING]
    aligned = {"max_bytes": 4096, "algorithm": "lsa_pipe_exchange", "params": {"blocks": 8}, "align": 16}
    answers = ask(plan_of(aligned, {"algorithm": "nccl_direct"}), [gather(size, 8) for size in (8200, 8192)])
    assert answers == [NOTHING, ("lsa_pipe_exchange", 8)]


def test_an_epilogue_goes_by_the_rules_of_a_norm_where_it_is_limited_too() -> None:
    table = library.open_plan(rows_text("nccl", 2), True)
    table.set(plan_text(shipped_plan(NCCL[2]).rules_of(2), "nccl"), 0)
    for shift, limit in product(range(5, 28), (0, 1, 8)):
        ops = ("all_reduce_rms_norm", "all_reduce_epilogue")
        norm, epilogue = (table.explain(op, "float32", "sum", 1 << shift, False, False, limit, 132) for op in ops)
        assert norm == epilogue


def test_what_cannot_be_limited_gives_way_to_its_fallback() -> None:
    fallback = [
        {"algorithm": "nccl_staged"},
        {"algorithm": "lsa_pipe_exchange", "params": {"blocks": 8}, "align": 16},  # serves no call of 8200 bytes
        {"algorithm": "lsa_oneshot", "params": {"blocks": 64, **TILES}},
        {"algorithm": "lsa_ll_oneshot", "params": {"blocks": 4}},  # takes fewer, but comes later
    ]
    ranges = [{"max_bytes": 4096, "algorithm": "lsa_ll_oneshot"}, {"algorithm": "nccl_direct"}]
    plan = plan_of(*ranges, fallback=fallback)
    limits = ((0, "nccl_direct"), (8, "lsa_oneshot"), (31, "lsa_oneshot"), (40, "nccl_direct"))
    for size, (limit, algorithm) in product((8200, 8192), limits):  # nor is it asked about one that it could serve
        assert ask(plan, [gather(size, limit)])[0][0] == algorithm


def test_a_communicator_with_a_limit_runs_what_is_best_on_so_few() -> None:
    curve = [point(8, "lsa_ll128_oneshot", blocks=8), point(16, "lsa_oneshot", blocks=16, **TILES)]
    plan = plan_of({**USUAL, "curve": curve})
    wanted = [("lsa_oneshot", 16), ("lsa_ll128_oneshot", 8)]
    assert ask(plan, [gather(1 << 20), gather(1 << 20, 8)], limit=20) == wanted


def test_what_takes_just_the_limit_of_a_communicator_is_not_cut_down() -> None:
    plan = plan_of({**USUAL, "curve": [pipe(16)]})
    assert [ask(plan, [gather(1 << 20)], limit)[0][1] for limit in (131, 132)] == [16, 132]


def test_a_limited_call_that_no_rule_covers_has_nothing() -> None:
    symmetric = plan_with({"op": "all_gather", "placement": "symmetric", "ranges": [{"algorithm": "lsa_oneshot"}]})
    for limit in (8, SPARING):
        assert ask(symmetric, [gather(64, limit), gather(64, limit, "symmetric")]) == [NOTHING] * 2


def test_what_is_best_on_so_few_is_only_for_sizes_that_the_range_takes() -> None:
    curve = [point(16, "lsa_oneshot", blocks=16, **TILES)]
    plan = plan_of({**USUAL, "align": 16, "curve": curve}, fallback=[{"algorithm": "nccl_direct"}])
    assert ask(plan, [gather(1 << 20), gather((1 << 20) + 8)], limit=20) == [("lsa_oneshot", 16), ("nccl_direct", 0)]


def test_symmetric_tensors_have_the_plain_curve_and_what_copy_engines_add_to_it() -> None:
    engine = {"sms": 0, "algorithm": "engine_pull", "slower": 0.2}
    symmetric = [
        {"max_bytes": 1 << 16, "algorithm": "lsa_oneshot"},
        {"max_bytes": 1 << 20, "algorithm": "lsa_oneshot", "curve": [engine]},
        {"algorithm": "engine_pull"},
    ]
    plan = plan_with(
        {"op": "all_gather", "ranges": [{**USUAL, "curve": [pipe(8, 1.5), pipe(16, 0.1)]}]},
        {"op": "all_gather", "placement": "symmetric", "ranges": symmetric},
    )
    eight, engines = ("lsa_pipe_exchange", 8), ("engine_pull", 0)
    few, usual = ("lsa_pipe_exchange", 16), ("lsa_oneshot", 132)
    for limits, wanted in (
        ((4, 8, 15), [eight, engines, engines]),
        ((16, 100, SPARING), [few, few, engines]),
        ((0, 132), [usual, usual, engines]),
    ):
        for limit in limits:
            calls = [gather(size, limit, "symmetric") for size in (1 << 16, 1 << 20, 1 << 24)]
            assert ask(plan, calls) == wanted, limit
    # On plain tensors the symmetric rules say nothing.
    assert ask(plan, [gather(1 << 20, 8)]) == [eight]
    why = plan.explain("all_gather", 1 << 20, "float32", world=2, placement="symmetric", max_sms=8)
    assert (why.rule, why.sms, why.high_bytes) == ("rules[1][1].curve[0]", 0, 1 << 20)
    assert why.curve == ((0, 0.2), (8, 1.5), (16, 0.1), (132, 0.0))
    # A communicator's limit leaves symmetric ranges to the plain rules, as far as these decide.
    assert ask(plan, [gather(1 << 20, 0, "symmetric")], limit=8) == [eight]


def test_of_plain_and_symmetric_points_that_take_equally_long_the_plain_one_is_first() -> None:
    ranges = [{"algorithm": "lsa_oneshot", "curve": [point(0, "engine_pull")]}]
    plan = plan_with(
        {"op": "all_gather", "ranges": [{**USUAL, "curve": [pipe(8)]}]},
        {"op": "all_gather", "placement": "symmetric", "ranges": ranges},
    )
    answers = ask(plan, [gather(1 << 20, limit, "symmetric") for limit in (4, 8)])
    assert [algorithm for algorithm, _ in answers] == ["engine_pull", "lsa_pipe_exchange"]


def test_a_symmetric_rule_that_leaves_a_call_to_the_plain_ones_is_not_cut_down_itself() -> None:
    plan = plan_with(
        {"op": "all_gather", "ranges": [{"algorithm": "lsa_pipe_exchange", "params": {"blocks": 32}}]},
        {"op": "all_gather", "placement": "symmetric", "ranges": [{"algorithm": "lsa_oneshot"}]},
    )
    assert ask(plan, [gather(1 << 20, 8, "symmetric")]) == [("lsa_pipe_exchange", 32)]


def test_the_shipped_plans_name_something_for_every_limited_call_but_what_nccl_alone_carries() -> None:
    specs = {op: spec for op, spec in COLLECTIVES.items() if op not in ("barrier", "send_recv")}
    able = [op for op, spec in specs.items() if any(row.backend == "nccl" and row.kernel for row in spec.algorithms)]
    calls = [(op, 1 << shift, 8, "plain") for op in specs for shift in range(4, 30)]
    for name in NCCL:
        answers = ask(shipped_plan(name), calls)
        assert [each != NOTHING for each in answers] == [op in able for op, *_ in calls], name
