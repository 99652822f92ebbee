"""Scripts of benchmarks/ that run on ranks: every way is there and right, and what is written can be read again."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.calls import Run

ROOT = Path(__file__).resolve().parents[2]
OURS, OTHERS = {"fused", "shm_composed", "shm_oneshot", "shm_twoshot", "unfused"}, {"gloo"}


@pytest.fixture
def run(command: Run, quick_python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """run(words) runs a script on two ranks; returns what it said and wrote."""
    monkeypatch.chdir(ROOT)
    path = tmp_path / "found.json"

    def run(words: str, last: str = "--time 0") -> tuple[str, dict[str, Any]]:
        line = f"run -n 2 --no-prefix {quick_python} {words} --device cpu {last} -o {path}"
        done = command(*line.split())
        assert done.returncode == 0, done.stdout + done.stderr
        document = json.loads(path.read_text(encoding="utf-8"))
        assert document["command"].startswith(f"commlib run -n 2 python {words}")
        return done.stdout, document

    return run


@pytest.mark.slow
def test_a_decode_step_is_the_same_by_every_way_and_its_parts_are_timed(run) -> None:
    shape = "--layers 1 --hidden 64 --heads 4 --kv-heads 2 --intermediate 96 --vocab 130 --context 20"
    said, found = run(f"benchmarks/tp_decode.py --batches 1,3 {shape}")
    assert found["shape"]["vocab"] == 130
    assert set(found["missing"]) == {"symm", "flashinfer", "sglang"}
    for batch in (1, 3):
        rows = [row for row in found["rows"] if row["batch"] == batch]
        assert {row["way"] for row in rows if row["part"] == "step"} == {*OURS, *OTHERS, "without"}
        assert {row["way"] for row in rows if row["part"] == "norms"} == {*OURS, *OTHERS}
        assert {row["part"] for row in rows if not row["way"]} == {"products", "attention"}
        assert all(row["us"] > 0 and row["blocks"] >= 5 for row in rows)
        assert all(row["apart"] < 1e-4 for row in rows if row["way"] in OURS | OTHERS)
        assert f"batch {batch}:" in said


@pytest.mark.slow
@pytest.mark.parametrize("quant", ["", " --quant fp8_group"])
def test_the_norm_of_rows_is_right_by_every_way(run, quant: str) -> None:
    said, found = run(f"benchmarks/norms.py --tokens 1,5 --widths 128 --dtype bfloat16{quant}")
    ways = OURS | (set() if quant else {*OTHERS, "epilogue"})
    for tokens in (1, 5):
        rows = [row for row in found["rows"] if row["tokens"] == tokens]
        assert {row["way"] for row in rows} == ways
        assert all(0 < row["apart"] < 0.04 and {"shm_composed", "unfused"} < {*row["over"], ""} for row in rows)
        assert f"{tokens} × 128" in said


@pytest.mark.slow
def test_a_layer_of_prompts_gives_the_same_in_chunks_and_the_rule_that_was_measured_is_kept(run) -> None:
    shape = "--hidden 64 --heads 4 --kv-heads 2 --intermediate 96"
    said, found = run(f"benchmarks/tp_prefill.py --tokens 128,512 --chunks 2,1:2:1 --sms 8 {shape}")
    ways = {"fused", "scattered", "none"}
    in_chunks = {f"{chunks} × {how}" for chunks in ("2", "1:2:1") for how in ("8", "engines")}
    in_chunks |= {"none 2", "none 1:2:1"}
    assert {row["way"] for row in found["rows"] if row["tokens"] == 128} == ways
    assert {row["way"] for row in found["rows"] if row["tokens"] == 512} == ways | in_chunks
    assert all(row["us"] > 0 and row["blocks"] >= 5 for row in found["rows"])
    assert found["wrong"] == {}
    for how in ("8", "engines"):
        assert found["rules"][how]["128"] == 1 and found["rules"][how]["512"] in (1, 2, [1, 2, 1])
    assert "rule of 8 multiprocessors: {128: 1, 512: " in said


@pytest.mark.slow
def test_products_and_calls_are_timed_alone_and_beside_each_other(run) -> None:
    said, found = run("benchmarks/beside.py --quick --sms 8,0 --tokens 1024", "--turns 2")
    cases = {(row["case"], row["op"]) for row in found["rows"]}
    assert {op for case, op in cases if case == "512³"} == {"all_gather", "reduce_scatter", "all_reduce"}
    assert len(cases) == 7
    for case, op in cases:
        rows = {row["way"]: row for row in found["rows"] if (row["case"], row["op"]) == (case, op)}
        assert set(rows) == {"ours 8", "ours", "ours, async", "torch"}
        assert [row["max_sms"] for row in rows.values()] == [8, 0, 0, 0]
        for row in rows.values():
            assert row["turns"] == 2
            assert min(row[name]["low"] for name in ("product_us", "call_us", "both_us", "call_slower")) > 0
            assert row["hidden"]["low"] <= row["hidden"]["median"] <= row["hidden"]["high"]
    assert found["wrong"] == {} and found["no_clocks"] == "there is no GPU"
    ops = ("all_gather", "reduce_scatter", "all_reduce")
    assert list(found["missing"]) == [f"nccl_symmetric, {op}" for op in ops]
    assert "# not here: nccl_symmetric, all_reduce: NCCL needs GPUs" in said


WRONG = """
import sys
sys.path.insert(0, {folder!r})
import reduce_norm
right = reduce_norm._torch
reduce_norm._torch = lambda x, residual, weight, eps, out: (right(x, residual, weight, eps, out)[0] * 1.1, residual)
sys.argv = "norms --tokens 2 --widths 64 --device cpu --time 0".split()
import norms
sys.exit(norms.main())
"""


@pytest.mark.slow
def test_a_way_that_gives_other_values_is_an_error(command: Run, quick_python: Path, tmp_path: Path) -> None:
    program = tmp_path / "wrong.py"
    program.write_text(WRONG.format(folder=str(ROOT / "benchmarks")))
    done = command("run", "-n", "2", str(quick_python), str(program))
    assert done.returncode != 0
    assert "# WRONG: " in done.stdout and "the most" in done.stdout
