"""What the machine adds to a figure: its description, and the processor time that waiting takes."""

from __future__ import annotations

import platform
import time
from pathlib import Path
from typing import Any

import torch

from commlib import __version__, env
from commlib.timing.candidate import Run


def fingerprint() -> dict[str, Any]:
    """Describe the machine and the software: a figure without them is worth nothing."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": models[0] if models else platform.processor(),
        "cores": len(models) or None,
        "machine": platform.machine(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "commlib": __version__,
        "settings": env.settings(),
    }


def cpu_share(run: Run) -> float:
    """Return the share of one core that this process uses during a call, for calls that mostly wait."""
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    return (time.process_time() - cpu) / (time.perf_counter() - wall)
