"""The description of a machine and its settings, which a plan is looked up by and every result has."""

from __future__ import annotations

import platform
import re
from pathlib import Path
from typing import Any

import torch

from commlib import env
from commlib.version import __version__


def fingerprint(backend: str = "") -> dict[str, Any]:
    """Describe the machine and the software: a figure without them is worth nothing.

    With a backend it is also what a plan for that backend is measured and looked up by.
    """
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    cpu = models[0] if models else platform.processor()
    # What runs on CPUs alone depends on no driver, and must not start one.
    gpu = _gpu() if (not backend or backend.startswith("nccl")) and torch.cuda.is_available() else {}
    return {
        **({"backend": backend} if backend else {}),
        "device": gpu.get("gpu") or cpu or platform.machine() or "unknown",
        **gpu,
        "cpu": cpu,
        "cores": len(models) or None,
        "machine": platform.machine(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "commlib": __version__,
        "settings": env.settings(),
    }


def _gpu() -> dict[str, Any]:
    info = Path("/proc/driver/nvidia/version")
    return {
        "gpu": torch.cuda.get_device_name(),
        "gpus": torch.cuda.device_count(),
        "driver": driver_of(info.read_text(encoding="utf-8")) if info.exists() else None,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if torch.distributed.is_nccl_available() else None,
        "cuda": torch.version.cuda,
    }


def driver_of(text: str) -> str | None:
    """Return the version in what NVIDIA's kernel module says of itself."""
    # NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build …
    match = re.search(r"Kernel Module\b.*?\s(\d+(?:\.\d+)+)\s", text)
    return match[1] if match else None
