"""Run PyTorch's own distributed tests for backends by name: `python -m tests.torch_suite commlib gloo -n 2`."""

import argparse
import json
import sys
from itertools import product
from pathlib import Path

import torch

from tests.torch_suite.run import Job, run_in_shares
from tests.torch_suite.suites import SUITES
from tests.torch_suite.table import counts, document, table


def options():
    parser = argparse.ArgumentParser(prog="python -m tests.torch_suite", description=__doc__)
    parser.add_argument("backends", nargs="*", help="default: commlib gloo; with --device cuda commlib nccl")
    parser.add_argument("-n", "--ranks", type=int, default=2)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--suite", choices=SUITES, action="append", help="default: all")
    parser.add_argument("-k", "--match", default="", help="only tests whose name this regular expression matches")
    parser.add_argument("--deadline", type=int, default=90, help="seconds of one test (default: 90)")
    parser.add_argument("-j", "--jobs", type=int, default=1, help="tests at a time, each with its ranks (default: 1)")
    parser.add_argument("--start", choices=("forkserver", "spawn"), default="forkserver", help="how ranks are started")
    parser.add_argument("-o", "--output", type=Path, help="write what was found to this JSON file")
    parser.add_argument("--log", type=Path, default=Path("build/torch_suite"), help="folder of the ranks' output")
    return parser.parse_args()


def main():
    args = options()
    backends = args.backends or ["commlib", {"cpu": "gloo", "cuda": "nccl"}[args.device]]
    args.log.mkdir(parents=True, exist_ok=True)
    results = {}
    for suite, backend in product(args.suite or SUITES, backends):
        log = args.log / f"{suite}-{backend}-{args.ranks}-{args.device}.log"
        for old in args.log.glob(f"{log.stem}.*"):
            old.unlink()
        job = Job(suite, backend, args.ranks, args.device, args.deadline, log, start=args.start, match=args.match)
        results[suite, backend] = run_in_shares(job, args.jobs)
        print(suite, backend, counts(results[suite, backend]), file=sys.stderr, flush=True)
        if args.output:  # each time: a run may be ended before its end
            found = document(results, torch=torch.__version__, ranks=args.ranks, device=args.device)
            args.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"{args.ranks} ranks on {args.device}, torch {torch.__version__}\n")
    print("\n".join(table(results)))
    ours = [row for (_, backend), row in results.items() if backend == backends[0]]
    sys.exit(any(outcome.outcome == "failed" for row in ours for outcome in row.values()))


if __name__ == "__main__":
    main()
