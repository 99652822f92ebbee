"""`commlib doctor`: GROUPS is the table of what is checked; a group but the first has a process of its own."""

from __future__ import annotations

from commlib.tools.cli.doctor import gpus, kept, libraries, machine, mpi, ranks
from commlib.tools.cli.doctor.finding import Check
from commlib.tools.cli.doctor.known import faults

AGAIN = "install it again: `make setup` in a checkout, else from where it came"
TRY_RANKS = "COMMLIB_TRACEBACK=1 commlib test --quick"

QUICK: tuple[Check, ...] = (
    Check("python", machine.python),
    Check("cpu", machine.cpu),
    Check("cores", machine.cores),
    Check("numa", machine.numa),
    Check("isa", machine.isa, "any"),
    Check("memfd", machine.memfd, "shm"),
    Check("pidfd", machine.pidfd),
    Check("peer memory", machine.peer_memory),
    Check("environment", machine.environment, "any"),
    Check("slurm", machine.slurm),
)
GROUPS: dict[str, tuple[Check, ...]] = {
    "libraries": (
        Check("torch", libraries.torch_build, "any", AGAIN),
        Check("native library", libraries.native_library, "any", AGAIN),
        Check("plugins", libraries.plugins, "any", "correct or unset COMMLIB_PLUGINS"),
        Check("compiler", libraries.compilers, "nccl", AGAIN),
        Check("nccl", libraries.nccl, "nccl", AGAIN),
        Check("nccl4py", libraries.nccl4py, "nccl", AGAIN),
        Check("known faults", faults, "", AGAIN),
    ),
    "gpus": (
        Check("driver", gpus.driver, "nccl", "compare `nvidia-smi` with the CUDA of torch"),
        Check("gpu", gpus.gpu, "any", "compare `nvidia-smi` with the CUDA of torch"),
        Check("clocks", gpus.clocks, "nccl", "look at `nvidia-smi -q -d PERFORMANCE,CLOCK`"),
        Check("topology", gpus.topology, "nccl", "look at `nvidia-smi topo -m`"),
        Check("peer access", gpus.peer_access, "nccl", "look at `dmesg | grep -i xid`, and turn ACS or the IOMMU off"),
    ),
    "ranks": (Check("two ranks", ranks.two_ranks, "shm", TRY_RANKS),),
    "gpu ranks": (
        Check("gpu ranks", ranks.gpu_ranks, "nccl", TRY_RANKS),
        Check("symmetric memory", ranks.symmetric_memory, "nccl", TRY_RANKS),
    ),
    "mpi": (Check("mpi", mpi.launcher_and_library, "", mpi.REMEDY),),
    "kept": (
        Check("cache", kept.cache),
        Check("plan", kept.plan, "any", "`commlib plan validate FILE` says more"),
    ),
}
