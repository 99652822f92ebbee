"""Options of nccl-tests and of OSU's benchmarks that `commlib bench` has not: what to type here instead."""

from __future__ import annotations

from collections.abc import Sequence

from commlib import env
from commlib.redops import REDOPS

# Those that mean the same here (-b -e -f -d -r -w -c) are options of ours; {} is the value that was given.
THEIRS = {
    ("-g", "--ngpus"): "commlib bench takes one rank for each GPU: -n {}",
    ("-t", "--nthreads"): "commlib bench takes one process for each rank, no threads: -n {}",
    ("--minbytes",): "the smallest size is -b {}",
    ("--maxbytes",): "the largest size is -e {}",
    ("-i", "--stepbytes"): "sizes grow by a factor (-f 2) or are named (--sizes 1M,2M,3M); iterations are --iters {}",
    ("--stepfactor",): "the factor from size to size is -f {}",
    ("--warmup_iters", "-x"): "iterations before the clock are -w {}",
    ("-m", "--agg_iters"): "calls are not aggregated, each has its own place in line; sizes are -b 8 -e 1M",
    ("-N", "--run_cycles"): "say how long to measure for: --time 60",
    ("-p", "--parallel_init"): "ranks always start side by side; leave it out",
    ("-z", "--blocking"): "calls follow each other without a wait in between, as with -z 0; leave it out",
    ("--op",): "the reduction is --redop {}",
    ("--datatype",): "the element type is -d {}",
    ("-y", "--stream_null"): "calls run on torch's current stream; leave it out",
    ("-T", "--timeout"): f"the deadline of a wait is the variable {env.TIMEOUT_S.name}",
    ("-G", "--cudagraph"): "replays of CUDA graphs are timed with --graph",
    ("-C", "--report_cputime"): "on GPUs the column `host` has what a call takes the host; leave it out",
    ("-a", "--average"): "a time is always the slowest rank's, as with -a 3; leave it out",
    (
        "-R",
        "--local_register",
    ): "plain tensors and symmetric ones have rows of their own, as with -R 0 and -R 2; leave it out",
    ("-J", "-F", "--output_file"): "results are written with -o {}",
    ("-M", "--memory_report", "-S", "--report_timestamps"): "the JSON has what is known of the run: -o results.json",
    ("-D", "--device_implementation"): "kernels are named: --algorithms lsa_oneshot",
    ("-V", "--device_cta_count"): "blocks of a kernel are --params blocks={}",
    ("-W", "--window-size"): "messages in flight are --window {}",
}
VALUES = {"-n": "2", "-d": "bf16", "--redop": "sum", "-o": "results.json", "--iters": "100", "-w": "5", "-f": "2"}


def remedy(option: str, words: Sequence[str]) -> str | None:
    """Say what to type here for an option of theirs among the words of a command line; None for nobody's."""
    ours = next((text for names, text in THEIRS.items() if option in names), None)
    if ours is None:
        return None
    before = ours.rpartition("{}")[0].split()
    example = VALUES.get(before[-1] if before else "", "64")
    return f"{option} is no option here: {ours.format(_value(option, words) or example)}"


def _value(option: str, words: Sequence[str]) -> str | None:
    """Return what was given with an option: behind it, after an equals sign, or right after its letter."""
    for at, word in enumerate(words):
        if word == option:
            following = words[at + 1] if at + 1 < len(words) else "-"
            return None if following.startswith("-") else following
        if word.startswith(option):
            return word[len(option) :].lstrip("=") or None
    return None


def check_output(name: str) -> None:
    """Refuse what nccl-tests' -o takes: a reduction."""
    if name in (*REDOPS, "all"):
        raise ValueError(f"-o is the file to write here; the reduction is --redop {name}")
