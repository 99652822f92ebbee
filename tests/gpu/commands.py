"""commlib's commands and programs of ranks, as a user starts them."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def commlib(*words: str, timeout_s: float = 110.0) -> str:
    """Run a command, which must end well; return what it printed."""
    command = [sys.executable, "-m", "commlib", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def on_two_ranks(*words: str, timeout_s: float = 110.0) -> str:
    """Run Python on two ranks; `-n 2` of other commands wants a GPU for each."""
    return commlib("run", "-n", "2", "--no-prefix", sys.executable, *words, timeout_s=timeout_s)
