"""Weights come from safetensors files as they were saved, each rank's part alone."""

import json
import re
import struct
from pathlib import Path

import pytest
import torch

pytest.importorskip("safetensors", reason="needs safetensors, of the extra `tp`")
from safetensors.torch import save_file

from commlib.tp import RandomWeights, SafeTensors, Shard
from commlib.tp.weights import INDEX
from examples.llama import Llama
from tests.llama.reference import CONFIG

SOURCE = RandomWeights(5)


class Kept:
    """A source that keeps what is read whole, under its name."""

    def __init__(self):
        self.tensors = {}

    def read(self, name, shape, dim=0, part=None):
        self.tensors[name] = SOURCE.read(name, shape)
        return SOURCE.read(name, shape, dim, part)


def tensors_of(comm):
    kept = Kept()
    Llama(comm, CONFIG).load(kept)
    return kept.tensors


def save(tensors, folder, files):
    """Save as Hugging Face does: one file, or several and an index of them."""
    names = sorted(tensors)
    shards = {f"model-{number:05}-of-{files:05}.safetensors": names[number::files] for number in range(files)}
    if files == 1:
        shards = {"model.safetensors": names}
    else:
        places = {name: file for file, own in shards.items() for name in own}
        (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}))
    for file, own in shards.items():
        save_file({name: tensors[name].contiguous() for name in own}, folder / file)
    config = {**CONFIG.__dict__, "model_type": "llama", "eos_token_id": None}
    (folder / "config.json").write_text(json.dumps(config))


def states(comm, folder):
    ours, made = Llama.from_folder(comm, folder), Llama(comm, CONFIG)
    made.load(SOURCE)
    return [(name, torch.equal(value, made.state_dict()[name])) for name, value in ours.state_dict().items()]


@pytest.mark.parametrize(("world", "files"), [(1, 3), (2, 1), (4, 3)])
def test_a_folder_of_safetensors_loads_to_the_bit_on_any_number_of_ranks(shm_ranks, tmp_path, world, files):
    (tensors, *_) = shm_ranks.run(tensors_of, world=1)
    save(tensors, tmp_path, files)
    for rank in shm_ranks.run(states, str(tmp_path), world=world):
        assert len(rank) == len(tensors) - 2 * 3, "of each layer Q, K and V are one, and gate and up"
        assert all(equal for _, equal in rank), rank


def resident_peak(reset=False):
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) << 10


@pytest.mark.parametrize("dim", [0, 1])
def test_only_the_part_of_a_rank_is_read(tmp_path, dim):
    rows, columns = (1 << 17, 1 << 9) if dim == 0 else (16, 1 << 22)  # 256 MiB of zeros that lie on no disk
    about = {"big": {"dtype": "F32", "shape": [rows, columns], "data_offsets": [0, rows * columns * 4]}}
    header = json.dumps(about).encode()
    header += b" " * (-len(header) % 8)
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(file.tell() + rows * columns * 4)
    whole = (rows, columns)
    part = Shard(whole[dim] // 2, whole[dim] // 256, whole[dim])
    before = resident_peak(reset=True)
    found = SafeTensors(tmp_path).read("big", whole, dim, part)
    assert found.shape[dim] == part.length
    assert found.eq(0).all()
    assert resident_peak() - before < 64 << 20


def test_errors_name_the_tensor_both_shapes_and_the_file(tmp_path):
    save_file({"a.weight": torch.zeros(4, 6)}, tmp_path / "model.safetensors")
    source = SafeTensors(tmp_path)
    said = r"a.weight in .*/model.safetensors has shape \(4, 6\), but the model needs \(4, 8\)"
    with pytest.raises(ValueError, match=said):
        source.read("a.weight", (4, 8))
    with pytest.raises(ValueError, match=r"has no tensor 'b.weight', but 1 other;"):
        source.read("b.weight", (4, 8))
    assert "a.weight" in source and "b.weight" not in source


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8], ids=str)
def test_quantised_weights_are_refused_not_taken_without_their_scales(tmp_path, dtype):
    scale = {"a.weight_scale": torch.ones(1)}
    save_file({"a.weight": torch.ones(4, 6).to(dtype), **scale}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=rf"a.weight in .* is of {dtype}, but must be bfloat16, float16, float32 or"):
        SafeTensors(tmp_path).read("a.weight", (4, 6))


def test_a_tensor_in_two_files_without_an_index_is_refused(tmp_path):
    for file in ("a.safetensors", "b.safetensors"):
        save_file({"x": torch.zeros(1)}, tmp_path / file)
    with pytest.raises(ValueError, match=r"'x' is in .*/a.safetensors and in .*/b.safetensors; remove one of them"):
        SafeTensors(tmp_path)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"x": "b.safetensors"}}))
    assert "x" in SafeTensors(tmp_path)


def test_a_folder_without_weights_or_with_broken_ones_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"has neither model.safetensors.index.json nor any \*.safetensors"):
        SafeTensors(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match=r"/model.safetensors cannot be read as safetensors"):
        SafeTensors(tmp_path)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": "gone.safetensors", "b": "there.safetensors"}}))
    save_file({"a": torch.zeros(1)}, tmp_path / "there.safetensors")
    with pytest.raises(ValueError, match=r"/gone.safetensors cannot be read"):
        SafeTensors(tmp_path).read("a", (1,))
    with pytest.raises(ValueError, match=r"says that 'b' is in .*/there.safetensors, but it is not"):
        SafeTensors(tmp_path).read("b", (1,))


@pytest.mark.parametrize("dim", [0, 1])
def test_random_weights_are_parts_of_one_tensor_and_differ_by_name_and_seed(dim):
    whole = SOURCE.read("a", (6, 8))
    part = Shard(2, 3, (6, 8)[dim])
    assert torch.equal(SOURCE.read("a", (6, 8), dim, part), whole.narrow(dim, 2, 3))
    assert not torch.equal(whole, SOURCE.read("b", (6, 8)))
    assert not torch.equal(whole, RandomWeights(6).read("a", (6, 8)))
    assert abs(SOURCE.read("a", (64, 64)).mean()) < 0.1
    assert SOURCE.read("a", (64,)).mean() > 0.8
