"""Public traces become ours, request by request, and what is not in their format is named."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from commlib.radix.trace import Trace
from commlib.tools.traces.importers import ENCODERS, IMPORTERS, mooncake, sharegpt

HERE = Path(__file__).parent
MOONCAKE, SHAREGPT = HERE / "mooncake.jsonl", HERE / "sharegpt.json"


def requests(lines, folder):
    """Read lines back as the simulator does."""
    path = folder / "trace.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return list(Trace(path))


def shared(a, b):
    same = min(len(a), len(b))
    return int(np.append(a[:same] != b[:same], True).argmax())


def test_prompts_of_mooncake_have_their_lengths_and_share_their_blocks(tmp_path):
    found = requests(mooncake(MOONCAKE), tmp_path)
    assert [len(each.tokens) for each in found] == [1500, 1024, 2100, 13]
    assert [len(each.output) for each in found] == [52, 16, 0, 458]
    assert [shared(a.tokens, b.tokens) for a, b in pairwise(found)] == [1024, 1024, 0]
    assert shared(found[0].tokens, found[2].tokens) == 1024
    assert len({int(token) for each in found for token in each.tokens}) == 1500 + 2100 - 1024 + 13


def test_ids_of_mooncake_may_be_hashes(tmp_path):
    path = tmp_path / "hashes.jsonl"
    rows = [{"input_length": 8, "output_length": 1, "hash_ids": ids} for ids in ([2**63, 7], ["a0", "ff"], [2**63, 9])]
    path.write_text("\n".join(map(json.dumps, rows)))
    found = requests(mooncake(path, block=4), tmp_path)
    assert [each.tokens.tolist() for each in found] == [[*range(8)], [*range(8, 16)], [0, 1, 2, 3, 16, 17, 18, 19]]


def test_a_reply_is_a_request_and_the_next_prompt_begins_with_it(tmp_path):
    texts = {}
    found = requests(sharegpt(SHAREGPT, tokens=lambda text: [texts.setdefault(text, len(texts))]), tmp_path)
    spoken = {number: text for text, number in texts.items()}
    said = [["".join(spoken[token] for token in part) for part in (each.tokens, each.output)] for each in found]
    first = "<human>Summarise the plan, please.<gpt>"
    assert said == [
        [first, "First we measure.\nThen we choose."],
        ["<system>Summarise.<human>Summarise the plan, now.<gpt>", "No."],
        ["<human>Short?<gpt>", ""],
        [f"{first}First we measure.\nThen we choose.<human>And then?<gpt>", "We measure again: \u00e9t\u00e9."],
    ]


@pytest.mark.parametrize("tokens", ENCODERS)
def test_texts_share_what_they_begin_with(tokens, tmp_path):
    found = requests(sharegpt(SHAREGPT, tokens=tokens, conversations=1), tmp_path)
    first, second, *_ = found
    assert shared(np.append(first.tokens, first.output), second.tokens) == len(first.tokens) + len(first.output)
    assert all(len(each.tokens) for each in found)


def test_words_and_bytes_are_told_apart():
    words, byte = (ENCODERS[name]() for name in ("words", "bytes"))
    assert words("to be, or not to be") == [0, 1, 2, 3, 4, 5, 1]  # " to" is another word than "to"
    assert words("to  be") == [0, 6]
    assert byte("\u00e9a") == [0xC3, 0xA9, 0x61]


@pytest.mark.parametrize(("at_once", "order"), [(1, "aabb"), (2, "abab"), (9, "abab")])
def test_so_many_conversations_go_on_at_a_time(tmp_path, at_once, order):
    path = tmp_path / "two.jsonl"  # lines of objects, as some copies of ShareGPT are
    turns = [{"from": role, "value": role} for role in ("human", "gpt", "human", "gpt")]
    path.write_text("".join(json.dumps({"conversations": [{"from": "system", "value": x}, *turns]}) for x in "ab"))
    found = sharegpt(path, tokens="bytes", conversations=at_once)
    assert "".join(chr(line["tokens"][len("<system>")]) for line in found) == order


ROW = {"input_length": 600, "output_length": 1, "hash_ids": [1, 2]}
TURN = {"from": "human", "value": "x"}
BAD = [
    ("mooncake", "{", r"line 1: not JSON"),
    ("mooncake", "[" * 100_000 + "{" + '"a":' * 100_000, r"line 1: not JSON|nested too deep"),
    ("mooncake", "\n7", r"object 1: 7 is no object of a trace"),
    ("mooncake", json.dumps({**ROW, "input_length": None}), r"object 1: input_length is null, but must be a number"),
    ("mooncake", json.dumps({**ROW, "output_length": -1}), r"output_length is -1"),
    ("mooncake", json.dumps({**ROW, "hash_ids": [[1], [2]]}), r"hash_ids is \[\[1\], \[2\]\], but must be a list"),
    ("mooncake", json.dumps({**ROW, "hash_ids": [1]}), r"input_length is 600, but hash_ids has 1 block of 512 tokens"),
    ("mooncake", json.dumps({**ROW, "input_length": 0, "hash_ids": []}), r"has 0 blocks of 512 tokens; drop the"),
    ("sharegpt", json.dumps([{"conversations": [TURN]}, {"id": 1}]), r"object 2: conversations is null"),
    ("sharegpt", json.dumps([{"conversations": [{"from": "human"}]}]), r"'value' of a turn is null, but must be text"),
    ("sharegpt", json.dumps([{"conversations": [{"from": 3, "value": "x"}]}]), r"'from' of a turn is 3"),
]


@pytest.mark.parametrize(("kind", "text", "fault"), BAD)
def test_what_is_not_in_the_format_is_named(tmp_path, kind, text, fault):
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=fault) as caught:
        list(IMPORTERS[kind](path))
    assert str(caught.value).startswith(str(path))


def test_too_many_different_tokens_are_refused(tmp_path):
    path = tmp_path / "large.jsonl"
    path.write_text(json.dumps({"input_length": 2**32, "output_length": 1, "hash_ids": [1, 2, 3, 4]}))
    with pytest.raises(ValueError, match=r"more than 2147483648 different tokens; import fewer --requests"):
        list(mooncake(path, block=2**30))


def test_bytes_are_no_trace(tmp_path):
    path = tmp_path / "zipped"
    path.write_bytes(b"\x1f\x8b\xff\xfe")
    with pytest.raises(ValueError, match="is not a text file; give a trace in JSON"):
        list(sharegpt(path))
