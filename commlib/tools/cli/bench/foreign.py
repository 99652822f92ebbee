"""Options that `commlib bench` has not: of nccl-tests and of OSU's benchmarks, and removed ones; what to type here."""

from __future__ import annotations

from commlib import env

# By names; those of theirs that mean the same here (-b -e -f -d -r -w -c) are options of ours.
OPTIONS = {
    ("-g", "--ngpus"): "a rank for each GPU: -n 8",
    ("-t", "--nthreads"): "a process for each rank, no threads: -n 8",
    ("--minbytes",): "the smallest size is -b 8",
    ("--maxbytes",): "the largest size is -e 64M",
    ("-i", "--stepbytes"): "sizes grow by a factor (-f 2) or are named (--sizes 1M,2M,3M); iterations are --iters 100",
    ("--stepfactor",): "the factor from size to size is -f 2",
    ("--warmup_iters", "-x"): "iterations before the clock are -w 5",
    ("-m", "--agg_iters"): "calls are not aggregated, each has its own place in line; sizes are -b 8 -e 1M",
    ("-N", "--run_cycles"): "for how long to measure is --time 60",
    ("--op",): "the reduction is --redop sum",
    ("--datatype",): "the element type is -d bf16",
    ("-T", "--timeout"): f"the deadline of a wait is the variable {env.TIMEOUT_S.name}",
    ("-G", "--cudagraph"): "replays of CUDA graphs are timed with --graph",
    ("-C", "--report_cputime"): "on GPUs the column `host` has what a call takes the host; leave it out",
    ("-a", "--average"): "a time is always the slowest rank's, as with -a 3; leave it out",
    ("-R", "--local_register"): "plain and symmetric tensors have rows of their own (-R 0, -R 2); leave it out",
    ("-J", "-F", "--output_file"): "results are written with -o results.json",
    ("-M", "-S", "--memory_report"): "the JSON has what is known of the run: -o results.json",
    ("-D", "--device_implementation"): "kernels are named: --algorithms lsa_oneshot",
    (
        "-V",
        "--device_cta_count",
        "--params",
    ): "parameters stand in a plan (--plan FILE); `commlib tune` tries several",
    ("-p", "-y", "-z", "--blocking"): "ranks start side by side, calls follow each other on torch's current stream",
    ("-W", "--window", "--window-size", "--pairs"): "a message is sent when the one before has arrived; for windows of "
    "messages run osu_bw",
    ("--overlap",): "benchmarks/beside.py of a checkout times calls next to matrix products",
    ("--percentiles",): "the JSON has p0, p10, p50, p90 and p100 of each row: -o results.json",
    ("--full",): "every row is printed with --format table",
    ("--seed",): "every run has the same order of blocks",
}
