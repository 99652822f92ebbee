"""Lengths, positions and offsets of new tokens for sparse attention; csrc/kernels/metadata/cpu.cc has the loop."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from commlib.counts import counted
from commlib.kernels import dispatch
from commlib.kernels.dispatch import PLAIN, PLAIN_OR_NONE, compiling
from commlib.native import library

MANY_TOKENS = 1 << 24  # beyond it, a length that its request cannot have is taken for a fault


class Metadata(NamedTuple):
    """The description of a batch's new tokens for attention, in int32; in `out=`, None skips an entry."""

    expanded: Tensor  # per token: how many tokens it sees, itself included
    clipped: Tensor  # the same, and `topk` at most
    cu_seqlens: Tensor  # per request and one more: where its tokens begin
    positions: Tensor  # per token: its place in its request
    request_index: Tensor  # per token: whose it is
    total: Tensor  # one element: the tokens of all requests, also those that did not fit


def metadata(
    extend_lens: Tensor | int,
    seq_lens: Tensor,
    topk: int,
    *,
    capacity: int | None = None,
    pad: int | None = None,
    out: Metadata | None = None,
) -> Metadata:
    """Describe the newest `extend_lens` of the `seq_lens` tokens of each request, in one launch, without a sync."""
    extend, window = (None, extend_lens) if isinstance(extend_lens, int) else (extend_lens, 0)
    plain = type(seq_lens) in PLAIN and type(extend) in PLAIN_OR_NONE
    if not plain:
        _check_types(extend, seq_lens)
    if out is None:
        tokens = _capacity(extend, window, seq_lens, capacity)
        sizes = (tokens, tokens, seq_lens.numel() + 1, tokens, tokens, 1)
        out = Metadata(*(seq_lens.new_empty(size, dtype=torch.int32) for size in sizes))
    elif capacity is not None:
        raise ValueError(f"capacity is {capacity}, but out has one too; pass one of them")
    elif len(out) != len(Metadata._fields):
        raise ValueError(
            f"out has {counted(len(out), 'entry', 'entries')}, but Metadata has 6; pass what an earlier call returned"
        )
    if plain and not compiling():
        _run(extend, window, seq_lens, topk, pad, *out)
    else:
        _metadata_into(extend, window, seq_lens, topk, pad, *out)
    return out


def _check_types(extend_lens: object, seq_lens: object) -> None:
    dispatch.check_tensors("metadata", seq_lens=seq_lens)
    if not isinstance(extend_lens, Tensor | None):
        name = type(extend_lens).__name__
        raise TypeError(f"extend_lens of metadata is a {name}, but must be an int or a torch.Tensor")


def _capacity(extend: Tensor | None, window: int, seq_lens: Tensor, capacity: int | None) -> int:
    if capacity is not None:
        if capacity < 0:
            raise ValueError(f"capacity is {capacity}, but must be 0 or more")
        return capacity
    if extend is None:
        return seq_lens.numel() * max(window, 0)
    if compiling() or type(extend) not in PLAIN or not extend.is_cpu:
        raise ValueError(
            f"the host does not know the number of tokens (extend_lens is on {extend.device}), and reading "
            "it would wait for the device; pass capacity= or out="
        )
    tokens = library.metadata_tokens(extend)
    if tokens > MANY_TOKENS and seq_lens.is_cpu and seq_lens.shape == extend.shape:
        for at in (extend > seq_lens).nonzero().flatten().tolist()[:1]:
            raise ValueError(
                f"extend_lens[{at}] is {int(extend[at])}, but seq_lens[{at}] is {int(seq_lens[at])}: for {tokens} "
                f"tokens, four outputs would take {tokens * 4 / 1e9:.1f} GB each; correct it, or pass capacity={tokens}"
            )
    return tokens


# Takes the arguments of the native function, in its order.
def _run(*arguments: Any) -> None:
    try:
        library.metadata(*arguments)
    except ValueError:
        if not dispatch.on_meta(*arguments):
            raise


# For torch.compile and tensor subclasses: the outputs are made outside, so that one operator serves both.
_metadata_into = torch.library.custom_op(
    "commlib::metadata_into",
    _run,
    mutates_args=Metadata._fields,
    schema="(Tensor? extend_lens, SymInt window, Tensor seq_lens, SymInt topk, SymInt? pad, Tensor(a!)? expanded, "
    "Tensor(b!)? clipped, Tensor(c!)? cu_seqlens, Tensor(d!)? positions, Tensor(e!)? request_index, "
    "Tensor(f!)? total) -> ()",
)
