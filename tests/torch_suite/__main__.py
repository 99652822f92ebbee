"""Run PyTorch's own distributed tests for backends by name: `python -m tests.torch_suite commlib gloo -n 2`."""

import argparse
import json
import sys
from collections import Counter
from itertools import product
from pathlib import Path

import torch

from tests.torch_suite.run import Job, run

SUITES = ("distributed", "threads")  # each on a base class that ships inside torch


def options():
    parser = argparse.ArgumentParser(prog="python -m tests.torch_suite", description=__doc__)
    parser.add_argument("backends", nargs="*", help="default: commlib gloo; with --device cuda commlib nccl")
    parser.add_argument("-n", "--ranks", type=int, default=2)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--suite", choices=SUITES, action="append", help="default: all")
    parser.add_argument("-k", "--match", default="", help="only tests that this expression matches, as with pytest")
    parser.add_argument("--deadline", type=int, default=90, help="seconds of one test (default: 90)")
    parser.add_argument("-j", "--jobs", type=int, default=1, help="tests at a time, each with its ranks (default: 1)")
    parser.add_argument("--start", choices=("forkserver", "spawn"), default="forkserver", help="how ranks are started")
    parser.add_argument("-o", "--output", type=Path, help="write what was found to this JSON file")
    parser.add_argument("--log", type=Path, default=Path("build/torch_suite"), help="folder of the ranks' output")
    return parser.parse_args()


def counts(outcomes):
    """Return how many tests were executed, passed, failed and skipped."""
    each = Counter(outcome.outcome for outcome in outcomes.values())
    rest = {name: each[name] for name in ("passed", "failed", "skipped")}
    return {"executed": rest["passed"] + rest["failed"], **rest}


def entry(suite, backend, outcomes):
    """Return what was found as data: the counts, each failure, and the tests that each reason skipped."""
    skipped = {}
    for test, outcome in outcomes.items():
        if outcome.outcome == "skipped":
            skipped.setdefault(outcome.reason, []).append(test)
    failures = {test: outcome.reason for test, outcome in outcomes.items() if outcome.outcome == "failed"}
    seconds = round(sum(outcome.seconds for outcome in outcomes.values()), 1)
    found = {"suite": suite, "backend": backend, **counts(outcomes), "seconds": seconds}
    return {**found, "failures": failures, "skips": skipped}


def lines(row):
    """Return what is printed of one suite and backend."""
    yield f"{row['suite']} with {row['backend']}: " + ", ".join(f"{row[name]} {name}" for name in counts({}))
    yield from (f"{len(tests):>5} skipped: {reason}" for reason, tests in row["skips"].items())
    yield from (f"      failed: {test}: {reason}" for test, reason in row["failures"].items())


def main():
    args = options()
    backends = args.backends or ["commlib", {"cpu": "gloo", "cuda": "nccl"}[args.device]]
    args.log = args.log.absolute()
    args.log.mkdir(parents=True, exist_ok=True)
    print(f"{args.ranks} ranks on {args.device}, torch {torch.__version__}")
    rows = []
    for suite, backend in product(args.suite or SUITES, backends):
        log = args.log / f"{suite}-{backend}-{args.ranks}-{args.device}.log"
        log.unlink(missing_ok=True)
        options_of_run = {"start": args.start, "match": args.match, "jobs": args.jobs}
        job = Job(suite, backend, args.ranks, args.device, args.deadline, log, **options_of_run)
        rows.append(entry(suite, backend, run(job)))
        print(*lines(rows[-1]), sep="\n", flush=True)
        if args.output:  # each time: a run may be ended before its end
            found = {"torch": torch.__version__, "ranks": args.ranks, "device": args.device, "results": rows}
            args.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    sys.exit(any(row["failed"] for row in rows if row["backend"] == backends[0]))


if __name__ == "__main__":
    main()
