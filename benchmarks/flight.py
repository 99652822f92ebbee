"""Make the same fault with torch's process group and with commlib, and let torch's fr_trace read both flight recorders.

python benchmarks/flight.py --device cuda -o flight.json    # NCCL's own dump next to that of `commlib debug --dump`
python benchmarks/flight.py                                 # ours alone, on shared memory

Two ranks make the same calls, until rank 1 leaves one out, or makes one of another size or operation, or none any more.
Each library's job then stands, or goes on wrongly; its recorder is dumped, and the analyser says what it sees. Ranks of
NCCL that share a GPU are told that they are on two hosts, as NCCL refuses them else; ours need tests/gpu/one_gpu/run.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from written import command_line, head, write

import commlib
from commlib.debug.findings import findings_lines, findings_of
from commlib.debug.jobs import look
from commlib.errors import CommError
from commlib.tools.debug.flight import flights

FAULTS = ("leaves out a call", "another size", "another operation", "makes no more calls")
CALLS, WARM, FAULTY, RANKS, CULPRIT = 20, 2, 12, 2, 1
STAND_S, LIMIT_S = 4.0, 90.0
TELLING = re.compile(r"sequence number|collective:|ranks|Culprit|error msg|pg info")
RANK = re.compile(r"Culprit rank (\d+)|missing ranks: \{(\d+)\}")


class Calls(NamedTuple):
    """The two calls, by one library or the other."""

    all_reduce: Any
    all_gather: Any


def torchs(device: str, rank: int, port: int) -> Calls:
    """Join a process group."""
    assert device != "cpu"  # what gloo records, the analyser cannot read
    dist.init_process_group("nccl", f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS)
    return Calls(dist.all_reduce, dist.all_gather_into_tensor)


def ours(device: str, rank: int, port: int) -> Calls:
    """Join a communicator."""
    backend = "shm" if device == "cpu" else "nccl"
    where = {"rank": rank, "size": RANKS, "address": f"127.0.0.1:{port}", "backend": backend}
    comm = commlib.init(**where, max_bytes=1 << 20, timeout_s=60.0)  # type: ignore[arg-type]
    return Calls(comm.all_reduce, comm.all_gather_into_tensor)


def traffic(calls: Calls, device: str, culprit: bool, fault: str) -> None:
    """Make the calls, with the fault among them."""
    if device != "cpu":
        torch.cuda.set_device(device)
    for number in range(WARM, CALLS):
        count, breaks = 100 + number, culprit and number == FAULTY
        if breaks and fault == "leaves out a call":
            continue
        if breaks and fault == "makes no more calls":
            return
        x = torch.ones(count + (breaks and fault == "another size"), device=device)
        with suppress(CommError, RuntimeError):  # what the job makes of it is no matter here
            if breaks and fault == "another operation":
                calls.all_gather(torch.ones(RANKS * count, device=device), x)
            else:
                calls.all_reduce(x)


def be_rank(library: str, device: str, fault: str, rank: int, port: int, folder: str) -> None:
    """Join, make calls until they stand, and keep torch's dump; commlib's is read from outside."""
    if device == "cuda":
        device = f"cuda:{rank % torch.cuda.device_count()}"
        torch.cuda.set_device(device)
    calls = (torchs if library == "torch" else ours)(device, rank, port)
    for number in range(WARM):
        calls.all_reduce(torch.ones(100 + number, device=device))
    if device != "cpu":
        torch.cuda.synchronize()
    threading.Thread(target=traffic, args=(calls, device, rank == CULPRIT, fault), daemon=True).start()
    time.sleep(STAND_S)
    if library == "torch":
        (Path(folder) / f"rank_{rank}").write_bytes(c10d._dump_nccl_trace())  # type: ignore[attr-defined]
    print("stands", flush=True)
    time.sleep(LIMIT_S)


def environment(library: str, device: str, rank: int) -> dict[str, str]:
    """Return that of a rank: torch keeps a flight recorder; its ranks on one GPU seem to be on hosts of their own."""
    found = {**os.environ, "TORCH_FR_BUFFER_SIZE": "1000"}
    if library == "torch" and device == "cuda" and torch.cuda.device_count() < RANKS:
        found |= {"NCCL_HOSTID": f"flight{rank}", "NCCL_SOCKET_IFNAME": "lo"}
        found.pop("CUDA_MPS_PIPE_DIRECTORY", None)  # under MPS, the end of one process breaks the others
    return found


def one(library: str, device: str, fault: str, folder: Path) -> list[str]:
    """Run a job with the fault and keep its dumps; return what `commlib debug` says, of a job of ours."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, "--be", library, device, fault, str(rank), str(port), str(folder)],
            stdout=subprocess.PIPE,
            text=True,
            env=environment(library, device, rank),
        )
        for rank in range(RANKS)
    ]
    limit = threading.Timer(LIMIT_S, lambda: [rank.kill() for rank in ranks])
    limit.start()
    try:
        said = [next((line for line in rank.stdout or () if line == "stands\n"), "") for rank in ranks]
        if not all(said):
            raise SystemExit(f"{library}, {fault}: not all ranks came as far as their calls")
        if library == "torch":
            return []
        job = look([rank.pid for rank in ranks])
        for rank, flight in flights(job).items():
            (folder / f"rank_{rank}").write_bytes(flight)
        findings = findings_of(job)
        job.ask_stacks({pid for finding in findings for pid in finding.threads})
        return findings_lines(job, None, findings)
    finally:
        limit.cancel()
        for rank in ranks:
            rank.send_signal(signal.SIGKILL)
            rank.wait()


def analysed(folder: Path) -> list[str]:
    """Return what torch's analyser says, the lines that tell something."""
    command = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", str(folder)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    lines = [line.strip() for line in (ran.stdout + ran.stderr).splitlines()]
    return [line for line in lines if TELLING.search(line)] if ran.returncode == 0 else lines[-5:]


def judged(library: str, device: str, fault: str) -> dict[str, Any]:
    """Make a fault with a library, and say what the analyser has named."""
    with TemporaryDirectory() as folder:
        debug = one(library, device, fault, Path(folder))
        said = analysed(Path(folder))
    ranks = [int(match[1] or match[2]) for match in map(RANK.search, said) if match]
    found = {"named": ranks[0] if ranks else None, "fr_trace": said}
    return {**found, "commlib_debug": debug} if debug else found


def main() -> int:
    """Compare them, fault by fault."""
    if sys.argv[1:2] == ["--be"]:
        library, device, fault, rank, port, folder = sys.argv[2:]
        be_rank(library, device, fault, int(rank), int(port), folder)
        return 0
    parser = command_line(__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    libraries = ("torch", "commlib") if options.device == "cuda" else ("commlib",)
    rows = []
    for fault in FAULTS:
        with ThreadPoolExecutor(len(libraries)) as pool:
            made = list(pool.map(lambda library, fault=fault: judged(library, options.device, fault), libraries))
        named = [one["named"] for one in made]
        rows.append({"fault": fault, **dict(zip(libraries, made, strict=True)), "same": len(set(named)) == 1})
        print(json.dumps(rows[-1], indent=1), flush=True)
    right = {name: sum(row[name]["named"] == CULPRIT for row in rows) for name in libraries}
    found = {"faults": len(rows), "right": right, "same": sum(row["same"] for row in rows)}
    print(json.dumps(found))
    backend = {"cpu": "shm", "cuda": "nccl"}[options.device]
    write(options.output, {**head("flight", RANKS, backend), **found, "rows": rows})
    return int(right["commlib"] < len(rows))


if __name__ == "__main__":
    sys.exit(main())
