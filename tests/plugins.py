"""Programs on ranks that have algorithms from outside the tree."""

import subprocess
from collections.abc import Callable
from pathlib import Path

Run = Callable[..., subprocess.CompletedProcess[str]]  # conftest's with_plugins
SAME_BITS = str(Path(__file__).with_name("same_bits.py"))


def on_ranks(with_plugins: Run, plugins: str, *words: str, ranks: int = 2, **more: str) -> str:
    """Return what Python prints on ranks."""
    done = with_plugins(plugins, "-m", "commlib", "run", "-n", str(ranks), "--", "python", *words, **more)
    return done.stdout + done.stderr


def failures(with_plugins: Run, of_rank_0: str, of_rank_1: str, kind: str, **more: str) -> str:
    """Return what two ranks print whose init(), or first call, fails with an error of this kind."""
    script = f"""
import os, commlib
if os.environ["RANK"] == "1":
    os.environ["COMMLIB_PLUGINS"] = {of_rank_1!r}
try:
    comm = commlib.init(backend="shm", timeout_s=20)
    import torch
    comm.all_reduce(torch.ones(3))
except (commlib.CommError, ValueError) as error:
    print("failed:", type(error).__name__, error)
"""
    said = on_ranks(with_plugins, of_rank_0, "-c", script, **more)
    assert said.count(f"failed: {kind} ") == 2, said
    return said
