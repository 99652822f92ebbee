"""Ranks(n): live rank processes for tests, bench and docs examples, reused from call to call."""

from commlib.tools.testing.ranks import Handle, RankError, Ranks

__all__ = ["Handle", "RankError", "Ranks"]
