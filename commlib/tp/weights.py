"""Where weights come from: safetensors files, of which a rank reads only its part, or random numbers."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from commlib.counts import counted
from commlib.errors import Unsupported
from commlib.tp.shard import Shard

INDEX = "model.safetensors.index.json"
TYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


class Source(Protocol):
    """What layers load from."""

    def read(self, name: str, shape: tuple[int, ...], dim: int = 0, part: Shard | None = None) -> Tensor:
        """Return a tensor that has this shape as a whole, or its part along a dimension."""


class SafeTensors:
    """The tensors of a folder: of the files that its index names, or of every *.safetensors in it."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._opened: dict[Path, Any] = {}
        self._place = self._places()

    def __contains__(self, name: str) -> bool:
        return name in self._place

    def read(self, name: str, shape: tuple[int, ...], dim: int = 0, part: Shard | None = None) -> Tensor:
        """Return a tensor, or its part along a dimension; only that part is read from the file."""
        if name not in self._place:
            raise ValueError(
                f"{self.folder} has no tensor {name!r}, but {counted(len(self._place), 'other')}; is it this model?"
            )
        path = self._place[name]
        if name not in (file := self._file(path)).keys():
            raise ValueError(f"{INDEX} says that {name!r} is in {path}, but it is not; download both again")
        tensor = file.get_slice(name)
        if tuple(tensor.get_shape()) != shape:
            raise ValueError(
                f"{name} in {path} has shape {tuple(tensor.get_shape())}, but the model needs {shape}; "
                "are its config.json and these weights of one model?"
            )
        bounds = slice(None) if part is None else slice(part.start, part.start + part.length)
        read: Tensor = tensor[(slice(None),) * dim + (bounds,)]
        if read.dtype not in TYPES:
            raise ValueError(
                f"{name} in {path} is of {read.dtype}, but must be bfloat16, float16, float32 or float64: quantised "
                "weights are not served; load the model they were made from"
            )
        return read

    def _places(self) -> dict[str, Path]:
        index = self.folder / INDEX
        if index.exists():
            return {name: self.folder / file for name, file in json.loads(index.read_text())["weight_map"].items()}
        paths = sorted(self.folder.glob("*.safetensors"))
        if not paths:
            raise ValueError(f"{self.folder} has neither {INDEX} nor any *.safetensors file")
        places: dict[str, Path] = {}
        for path in paths:
            for name in self._file(path).keys():
                if (other := places.setdefault(name, path)) != path:
                    raise ValueError(f"{name!r} is in {other} and in {path}; remove one of them, or add {INDEX}")
        return places

    def _file(self, path: Path) -> Any:
        if path not in self._opened:
            try:
                from safetensors import SafetensorError, safe_open
            except ImportError:
                raise Unsupported('loading weights needs safetensors: pip install "safetensors>=0.4"') from None
            try:
                self._opened[path] = safe_open(path, framework="pt")
            except (OSError, SafetensorError) as error:
                raise ValueError(f"{path} cannot be read as safetensors: {error}") from None
        return self._opened[path]


class RandomWeights:
    """Made-up weights, by name and seed: the same whole tensor on every rank, however many there are."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def __contains__(self, name: str) -> bool:
        return True

    def read(self, name: str, shape: tuple[int, ...], dim: int = 0, part: Shard | None = None) -> Tensor:
        """Return a matrix that keeps the size of its inputs, or a vector of about 1."""
        generator = torch.Generator().manual_seed(zlib.crc32(f"{self.seed} {name}".encode()))
        whole = torch.randn(shape, generator=generator, dtype=torch.float32)
        whole = whole * shape[-1] ** -0.5 if len(shape) > 1 else 1 + whole / 10
        return whole if part is None else whole.narrow(dim, part.start, part.length)
