"""GPUs: the driver against torch, clocks and links as nvidia-smi tells them, and copies between GPUs by trying."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from typing import NamedTuple

from commlib import env
from commlib.errors import Unsupported, one_line
from commlib.tools.cli.doctor.finding import Finding, broken, has_gpus, main_job, ok, warning

MODULE = Path("/proc/driver/nvidia/version")
LEAST_DRIVER = {12: "525.60.13", 13: "580.65.06"}  # by the major version of CUDA, within which all minor ones run
SMI_S = 30.0
COPY_BYTES = 64 << 20
IN_CONTAINER = "in a container: docker run --gpus all, with NVIDIA_DRIVER_CAPABILITIES=compute,utility"
CLOCK_FIELDS = "index,clocks.sm,clocks.max.sm,temperature.gpu,power.draw,power.limit,clocks_{}_reasons.active"
# Why a GPU runs below its clock, by the bit of the driver's mask, and what to do; "" where it is no fault.
REASONS = {
    0x1: ("idle", ""),
    0x2: ("application clocks", ""),
    0x4: ("power limit", ""),
    0x8: ("hardware slowdown", "look at cooling and power: `nvidia-smi -q -d PERFORMANCE`"),
    0x10: ("sync boost", ""),
    0x20: ("too hot", "improve the cooling"),
    0x40: ("far too hot", "improve the cooling, at once"),
    0x80: ("power brake", "the machine's power supply asked for it: check the supply"),
    0x100: ("display clocks", ""),
}
# What torch says where it cannot start CUDA, and what to do.
STARTS = {
    "not yet initialized": "start nvidia-fabricmanager, of the driver's own version: the links between GPUs need it",
    "too old": "update the driver, or install a torch for an older CUDA",
    "": "see the driver above; `nvidia-smi` must work too",
}
LINKS = {
    "NV": "NV18: 18 NVLinks",
    "PIX": "PIX: one PCIe switch",
    "PXB": "PXB: several PCIe switches",
    "PHB": "PHB: PCIe and the CPU's bridge",
    "NODE": "NODE: PCIe, within a NUMA node",
    "SYS": "SYS: PCIe and the link between CPUs",
}


def driver() -> Finding:
    """Return the driver, and whether it serves the CUDA that torch was built for."""
    import torch

    from commlib.plan.machine import driver_of

    number = (driver_of(MODULE.read_text(encoding="utf-8")) if MODULE.exists() else None) or "of unknown version"
    serves, built = _cuda_of_driver(), torch.version.cuda
    if serves is None:
        return broken(f"driver {number}, but libcuda.so.1 cannot be loaded", f"install the driver; {IN_CONTAINER}")
    said = f"{number} serves CUDA {serves[0]}.{serves[1]}"
    if built is None:
        return ok(said)
    major = int(built.partition(".")[0])
    if serves[0] < major:
        least = LEAST_DRIVER.get(major, f"one for CUDA {major}")
        remedy = f"update the driver to {least} or newer, or install a torch built for CUDA {serves[0]}"
        return broken(f"{said}, but torch is built for CUDA {built}", remedy)
    return ok(f"{said}; torch is built for {built}")


def _cuda_of_driver() -> tuple[int, int] | None:
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    number = ctypes.c_int()
    library.cuDriverGetVersion(ctypes.byref(number))
    return number.value // 1000, number.value % 1000 // 10


def gpu() -> Finding:
    """Return the GPUs that torch can use."""
    import torch

    if not has_gpus():
        return _no_gpu(bool(torch.version.cuda))
    if torch.version.cuda is None:
        remedy = "install a CUDA build of torch; in a checkout: launch/setup.sh --gpu"
        return broken("a GPU, but torch is a CPU build", remedy)
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        remedy = next(remedy for said, remedy in STARTS.items() if said in str(error))
        return broken(f"torch cannot use the GPU: {one_line(error)}", remedy)
    count = torch.cuda.device_count()
    names = sorted({torch.cuda.get_device_name(device) for device in range(count)})
    memory = [torch.cuda.mem_get_info(device) for device in range(count)]
    free, whole = min(free for free, _ in memory) >> 30, min(whole for _, whole in memory) >> 30
    detail = f"{count} × {' and '.join(names)}, {whole} GiB each, {free} GiB or more free"
    return ok(detail, "one GPU serves one rank; several ranks then use CPUs" if count == 1 else "")


def _no_gpu(expected: bool) -> Finding:
    """Say that there is no GPU; a torch for CUDA, or the environment, shows that one was expected."""
    why = "CUDA_VISIBLE_DEVICES hides all GPUs" if env.hides_gpus() else "no NVIDIA GPU"
    remedy = "unset CUDA_VISIBLE_DEVICES" if env.hides_gpus() else f"install the driver; {IN_CONTAINER}"
    if main_job() == "nccl":
        return broken(f"{why}, but {env.BACKEND.name} asks for ranks on GPUs", remedy)
    return ok(f"{why}: ranks use CPUs and shared memory", f"if there should be one: {remedy}" if expected else "")


def clocks() -> Finding:
    """Return clocks, temperature and power of each GPU, and what holds a clock back."""
    try:
        rows = _clock_rows()
    except Unsupported as error:
        return warning(f"cannot be read: {error}", "a GPU that is held back is then only seen in its figures")
    table = ["gpu   MHz/max   °C   W/limit  held back by", *(row.line() for row in rows)]
    faults = {f"GPU {row.gpu} is held back: {reason}": remedy for row in rows for reason, remedy in row.faults()}
    if faults:
        return warning("; ".join(faults), "; ".join(dict.fromkeys(faults.values())), tuple(table))
    return ok("no GPU is held back by heat or its power supply", table=tuple(table))


class _Clocks(NamedTuple):
    """What nvidia-smi says of one GPU; numbers are text, as some are [N/A]."""

    gpu: str
    mhz: str
    most_mhz: str
    celsius: str
    watts: str
    most_watts: str
    mask: str

    def reasons(self) -> list[tuple[str, str]]:
        mask = int(self.mask, 16) if re.fullmatch(r"0x[0-9a-fA-F]+", self.mask) else 0
        return [reason for bit, reason in REASONS.items() if mask & bit]

    def faults(self) -> list[tuple[str, str]]:
        return [(reason, remedy) for reason, remedy in self.reasons() if remedy]

    def line(self) -> str:
        """Return the row of the table."""
        watts, most = self.watts.partition(".")[0], self.most_watts.partition(".")[0]
        why = ", ".join(reason for reason, _ in self.reasons()) or "-"
        return f"{self.gpu:>3} {f'{self.mhz}/{self.most_mhz}':>9} {self.celsius:>4} {f'{watts}/{most}':>9}  {why}"


def _clock_rows() -> list[_Clocks]:
    form = "--format=csv,noheader,nounits"
    try:
        text = _smi(f"--query-gpu={CLOCK_FIELDS.format('event')}", form)
    except Unsupported:  # the name before driver 535
        text = _smi(f"--query-gpu={CLOCK_FIELDS.format('throttle')}", form)
    cells = [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]
    return [_Clocks(*row) for row in cells if len(row) == len(_Clocks._fields)]


def topology() -> Finding:
    """Return how the GPUs are linked, as a matrix."""
    try:
        names, rows = _matrix(_smi("topo", "-m"))
    except Unsupported as error:
        return warning(f"cannot be read: {error}", "the copies below show what the links do")
    if not rows:
        return warning("cannot be read: nvidia-smi printed no matrix", "the copies below show what the links do")
    used = sorted({re.sub(r"\d+$", "", cell) for _, cells in rows for cell in cells} - {"X"})
    legend = "; ".join(LINKS.get(kind, kind) for kind in used)
    table = [" " * 5 + "".join(f" {name:>5}" for name in names)]
    table += [f"{name:<5}" + "".join(f" {cell:>5}" for cell in cells) for name, cells in rows]
    slow = [kind for kind in used if kind != "NV"]
    remedy = "GPUs without NVLink between them: expect the figures of PCIe" if slow else ""
    return ok(legend or "one GPU", remedy, tuple(table))


def _matrix(text: str) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """Read what `nvidia-smi topo -m` prints: names of columns that are GPUs, and each GPU's row of them."""
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).split("\t") for line in text.splitlines()]
    cells = [[cell.strip() for cell in line] for line in lines]
    head = next((row for row in cells if "GPU0" in row[1:]), [])
    columns = [place for place, name in enumerate(head) if re.fullmatch(r"GPU\d+", name)]
    rows = [row for row in cells if re.fullmatch(r"GPU\d+", row[0]) and len(row) > max(columns, default=0)]
    return [head[place] for place in columns], [(row[0], [row[place] for place in columns]) for row in rows]


def _smi(*words: str) -> str:
    """Return what nvidia-smi prints; Unsupported says why there is nothing."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        raise Unsupported("there is no nvidia-smi on PATH")
    try:
        done = subprocess.run([tool, *words], capture_output=True, text=True, check=False, timeout=SMI_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unsupported(f"nvidia-smi: {one_line(error)}") from None
    if done.returncode:
        said = (done.stdout + done.stderr).strip().splitlines() or [f"exit code {done.returncode}"]
        raise Unsupported(f"nvidia-smi: {said[0]}")
    return done.stdout


class Copy(NamedTuple):
    """One copy from a GPU to another: whether they have peer access, whether the data came, and how fast."""

    source: int
    target: int
    direct: bool
    right: bool
    gbps: float


def peer_access() -> Finding:
    """Copy between all pairs of GPUs, and compare what came."""
    import torch

    count = torch.cuda.device_count()
    if count < 2:
        return ok("one GPU has no peer") if count else warning("not tried: torch has no GPU")
    return judged([_copied(source, target) for source, target in permutations(range(count), 2)])


def judged(copies: Sequence[Copy]) -> Finding:
    """Say what the copies show."""
    count = 1 + max(copy.source for copy in copies)
    speeds = {(copy.source, copy.target): f"{copy.gbps:.0f}" for copy in copies}
    table = ["GB/s to" + "".join(f" {f'GPU{target}':>5}" for target in range(count))]
    for source in range(count):
        table.append(f"GPU{source:<4}" + "".join(f" {speeds.get((source, to), '-'):>5}" for to in range(count)))
    if wrong := [f"{copy.source} → {copy.target}" for copy in copies if not copy.right]:
        remedy = (
            "turn PCIe ACS or the IOMMU off (BIOS, or the kernel's iommu=off); NCCL_P2P_DISABLE=1 avoids such copies"
        )
        return broken(f"copies between GPUs arrive with wrong data: {', '.join(wrong)}", remedy, tuple(table))
    if apart := [f"{copy.source} → {copy.target}" for copy in copies if not copy.direct]:
        remedy = (
            "commlib's kernels need it, so NCCL's own calls run; a virtual machine or a driver setting may forbid it"
        )
        return warning(f"no peer access: {', '.join(apart)}; copies go through the CPU", remedy, tuple(table))
    return ok("every GPU writes to every other one, and the data is right", table=tuple(table))


def _copied(source: int, target: int) -> Copy:
    import torch

    direct = torch.cuda.can_device_access_peer(source, target)
    sent = torch.arange(COPY_BYTES // 4, dtype=torch.int32, device=source) * 7 + source
    came = torch.zeros_like(sent, device=target)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with torch.cuda.device(source):
        came.copy_(sent)  # the first one opens the way
        came.zero_()
        torch.cuda.synchronize(target)
        start.record()
        came.copy_(sent)
        end.record()
        end.synchronize()
    right = torch.equal(came.cpu(), sent.cpu())
    return Copy(source, target, direct, right, COPY_BYTES / start.elapsed_time(end) / 1e6)
