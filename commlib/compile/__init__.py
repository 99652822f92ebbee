"""Collectives in torch.compile: their operators, what Dynamo traces, the pass that fuses them, and epilogues."""

from __future__ import annotations

from commlib.compile.operators import register, untraced

__all__ = ["register", "untraced"]
