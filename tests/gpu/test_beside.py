"""The benchmarks of communication beside products run to their end, with right values, on small tensors."""

import json
from pathlib import Path
from typing import Any

from tests.gpu.commands import on_two_ranks


def run(folder: Path, words: str) -> dict[str, Any]:
    on_two_ranks(*words.split(), "--device", "cuda", "-o", str(folder / "found.json"), timeout_s=200)
    found: dict[str, Any] = json.loads((folder / "found.json").read_text(encoding="utf-8"))
    return found


def test_products_and_calls_are_timed_alone_and_beside_each_other(tmp_path: Path) -> None:
    found = run(tmp_path, "benchmarks/beside.py --quick --sms 8,0 --tokens 1024")
    ways = {row["way"] for row in found["rows"]}
    assert {"ours 8", "ours"} <= ways
    assert ways >= {"nccl"} or "nccl, all_gather" in found["missing"]
    assert len({(row["case"], row["op"]) for row in found["rows"]}) == 7
    for row in found["rows"]:
        assert min(row[name]["low"] for name in ("product_us", "call_us", "both_us", "product_slower")) > 0
        assert found["no_clocks"] or min(row["clocks"]["mhz"]) > 0


def test_a_layer_of_prompts_gives_the_same_in_chunks_and_at_once(tmp_path: Path) -> None:
    shape = "--hidden 512 --heads 8 --kv-heads 2 --intermediate 1024"
    for graph in ("", " --graph"):
        words = f"benchmarks/tp_prefill.py --tokens 256,512 --chunks 2,4 --sms 8 --time 0.3{graph} {shape}"
        found = run(tmp_path, words)
        ways = {row["way"] for row in found["rows"] if "engines" not in row["way"]}  # these need a GPU for each rank
        assert ways == {"fused", "scattered", "none", "2 × 8", "4 × 8", "none 2", "none 4"}
        assert found["wrong"] == {}
        assert set(found["rules"]["8"]) == {"256", "512"}
