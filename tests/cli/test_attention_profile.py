"""`commlib profile attention`: what is measured, compared, printed and refused; never a time."""

from __future__ import annotations

import json
from importlib import resources

import jsonschema
import pytest
import torch

from commlib.cli import main
from commlib.kernels import decode_attention
from commlib.peers.kernels import attention, attention_peers

SCHEMA = json.loads((resources.files("commlib.cli.profile") / "attention_schema.json").read_text(encoding="utf-8"))
QUICK = ("--time", "0.1", "--device", "cpu", "--dim", "32")
ON_GPUS = {"torch cuDNN", "torch efficient", "FlexAttention", "flash-attn", "FlashInfer"}


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # the same candidates everywhere


def profile(*words):
    with pytest.raises(SystemExit) as end:
        main(["profile", "attention", *words])
    return end.value.code


def written(path):
    found = json.loads(path.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(SCHEMA).validate(found)
    return found


def test_decoding_is_measured_beside_who_is_here(tmp_path, capsys):
    path = tmp_path / "report.json"
    assert profile("--compare", "-b", "1,3", "-l", "40", *QUICK, "-o", str(path)) == 0
    found = written(path)
    assert (found["complete"], found["config"]["phase"], found["config"]["beside"]) == (True, "decode", "compare")
    rows = {row["candidate"]: row for row in found["rows"] if row["batch"] == 3}
    assert {name for name, row in rows.items() if row["skipped"]} == {*ON_GPUS, "read, Triton"}
    for name in ("commlib", "commlib split 256", "gather, torch", "torch flash", "torch math"):
        assert (rows[name]["wrong"], rows[name]["error"] < 1e-2) == (0, True)
        assert rows[name]["time_us"]["p50"] > 0
    assert rows["commlib"]["bytes"] == 3 * (40 * 2 * 32 + 2 * 8 * 32) * 2
    assert rows["commlib"]["flops"] == 3 * 4 * 8 * 32 * 40
    assert rows["commlib"]["versus"]["of"] in {"gather, torch", "torch flash", "torch math"}
    assert max(row["of_ceiling"] for row in rows.values() if row["role"] == "floor" and row["of_ceiling"]) == 1
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert "# skipped flash-attn: flash_attn is not installed (2 cases)" in text
    assert "# Values too far off : 0 OK" in text


def test_prefill_is_measured_beside_what_the_model_does(tmp_path):
    path = tmp_path / "report.json"
    words = ("--phase", "prefill", "--compare", "-b", "2", "-l", "40", "--dtype", "fp32")
    assert profile(*words, *QUICK, "-o", str(path)) == 0
    rows = {row["candidate"]: row for row in written(path)["rows"]}
    assert {name for name, row in rows.items() if row["time_us"]} == {
        "matmul",
        "commlib.tp",
        "torch",
        "torch flash",
        "torch math",
    }
    assert all(row["error"] < 1e-5 for row in rows.values() if row["error"] is not None)
    assert rows["commlib.tp"]["flops"] == 4 * 8 * 32 * 2 * 800


def test_a_sweep_has_other_pages_and_an_8_bit_cache(tmp_path, monkeypatch):
    from commlib.cli.profile import attention_job

    monkeypatch.setitem(attention_job.SWEEPS, ("cpu", "decode"), [(1, 20), (2, 30)])
    monkeypatch.setitem(attention_job.SWEPT_AT, "cpu", (2, 30))
    path = tmp_path / "report.json"
    assert profile("--sweep", "--ragged", *QUICK, "-o", str(path)) == 0
    found = written(path)
    cases = [(r["batch"], r["page_size"], r["cache"]) for r in found["rows"] if r["candidate"] == "commlib"]
    bf16, fp8 = "bfloat16", "float8_e4m3fn"
    assert cases == [(1, 16, bf16), (2, 16, bf16), (2, 1, bf16), (2, 64, bf16), (2, 16, fp8)]
    assert all(row["wrong"] in (0, None) for row in found["rows"])


def test_a_wrong_value_is_counted_and_fails_the_run(tmp_path, monkeypatch, capsys):
    def wrong(*tensors, out, **options):
        decode_attention(*tensors, out=out, **options)
        out[0, 0, :3] = float("nan")
        return out

    monkeypatch.setattr(attention, "decode_attention", wrong)
    path = tmp_path / "report.json"
    assert profile("-b", "1", "-l", "20", *QUICK, "-o", str(path)) == 1
    row = written(path)["rows"][0]
    assert (row["candidate"], row["wrong"] % 3, row["wrong"] > 0, row["error"]) == ("commlib", 0, True, None)
    text = capsys.readouterr().out
    assert "WRONG" in text
    assert "FAILED" in text


def test_tunings_are_of_the_gpu(capsys):
    assert profile("--tune", "-b", "1", "-l", "20", *QUICK) == 0
    assert "# skipped tunings: they are of the GPU's kernel" in capsys.readouterr().out


def test_a_package_that_is_installed_is_imported_when_it_is_prepared(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(attention_peers.importlib.util, "find_spec", lambda name: name)
    found = attention_peers._optional("flash-attn", "json", lambda library, inputs: library.loads)
    assert found.prepare(None) is json.loads


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--phase", "prefill", "--fp8"), "--fp8, --ragged and --tune are of decoding"),
        (("--tune", "--compare"), "--tune measures ours alone; leave out --compare"),
        (("--heads", "6", "--kv-heads", "4"), "--heads 6 is no multiple of --kv-heads 4"),
        (("--dtype", "int32"), "attention is profiled for bfloat16, float16, float32, not int32"),
        (("-b", "x"), "--batch 'x' is no list of numbers"),
        (("-l", "1G"), "--length has 1073741824, but 16777216 is the most"),
        (("--dim", "512"), "512 is not in the range"),
    ],
)
def test_what_cannot_be_measured_is_refused(words, said, capsys):
    assert profile(*words, *QUICK[:4]) == 2
    assert said in " ".join(capsys.readouterr().err.split())
