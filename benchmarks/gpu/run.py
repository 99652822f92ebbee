"""Ours beside NCCL, torch and vLLM on GPUs: one job, everything interleaved; writes JSON, prints the tables.

    python benchmarks/gpu/run.py --op all_reduce --seconds 60 -o result.json
    python benchmarks/gpu/run.py --mode eager --sizes 1K,64K,1M
    python benchmarks/gpu/run.py --op all_reduce --algorithms all --sweep --no-peers

In graph mode a block is one replay of a graph of up to 99 calls between two events on the device, which all ranks
start at once; in eager mode it is 102 calls.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import session
import torch
from ours import KNOBS, Sweep
from table import tables

from commlib.testing import RankError, Ranks
from commlib.timing import fingerprint

SCHEMA, VERSION = "commlib.gpu", 1
OPS = ("all_reduce", "all_gather", "reduce_scatter")
SIZES = tuple(1 << shift for shift in range(8, 29))
QUICK = tuple(1 << shift for shift in (8, 10, 14, 16, 18, 20, 22, 24, 26))
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
SLACK_S = 100.0  # of one size, over the seconds it was given, before its ranks are ended


def main() -> int:
    """Measure every size of every collective, then write and print what was found."""
    arguments = _arguments()
    options = _options(arguments)
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "version": VERSION,
        "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": shown_command("benchmarks/gpu/run.py"),
        "fingerprint": fingerprint(),
        "ranks": arguments.ranks,
        "rows": [],
    }
    started = time.monotonic()
    failure = _measure(arguments, options, document)
    document["seconds"] = round(time.monotonic() - started, 1)
    if arguments.output:
        arguments.output.write_text(json.dumps(document, indent=1) + "\n")
    print(tables(document))
    if failure:
        print(f"stopped early: {failure}", file=sys.stderr)
    return int(bool(failure) or any(row.get("wrong") and row["ours"] for row in document["rows"]))


def shown_command(script: str) -> str:
    """Return the command without the folders it happened to use."""
    return shlex.join(["python", script, *(Path(a).name if a.startswith("/") else a for a in sys.argv[1:])])


def size_of(text: str) -> int:
    """Read a size: bytes, or a number with K, M or G."""
    return int(text[:-1]) * UNITS[text[-1].upper()] if text[-1].upper() in UNITS else int(text)


def _measure(arguments: Any, options: session.Options, document: dict[str, Any]) -> str:
    """Fill in the document's rows; return why it ended early, if it did."""
    cases = [(op, size) for op in arguments.op for size in arguments.sizes]
    deadline = time.monotonic() + arguments.seconds
    settings = {"backend": arguments.backend, "timeout_s": 60.0, "max_bytes": 64 << 20}
    try:
        with Ranks(arguments.ranks, deadline_s=arguments.seconds + SLACK_S, **settings) as ranks:
            document["fingerprint"] |= ranks.run(session.start, options)[0]
            for done, (op, size) in enumerate(cases):
                share_s = max(0.0, deadline - time.monotonic()) / (len(cases) - done)
                rows = ranks.run(session.measure, op, size, share_s)[0]
                document["rows"] += rows
                print(f"# {_progress(rows)}", file=sys.stderr, flush=True)
            ranks.run(session.stop)
    except (RankError, KeyboardInterrupt) as error:
        return str(error) or type(error).__name__
    return ""


def _progress(rows: Sequence[dict[str, Any]]) -> str:
    first = rows[0]
    times = " ".join(
        f"{row['candidate']} {row['p50_us']:.2f}" for row in rows if "p50_us" in row and not row["variant"]
    )
    variants = sum(row["variant"] for row in rows)
    return f"{first['op']} {first['bytes']}: {times}" + (f", {variants} variants" if variants else "")


def _options(arguments: Any) -> session.Options:
    grid = {knob: values for knob in KNOBS if (values := getattr(arguments, knob))}
    wide = grid if arguments.sweep or grid else None
    sweep = Sweep(arguments.algorithms, wide, with_base=arguments.mode == "eager")
    least = 5 if arguments.quick else 15
    return session.Options(
        mode=arguments.mode,
        max_bytes=max(arguments.sizes),
        peers=arguments.peers,
        custom_peer=arguments.custom_peer,
        only=arguments.only,
        sweep=sweep,
        least_blocks=arguments.least_blocks or least,
        most_blocks=max(arguments.most_blocks, arguments.least_blocks or least),
    )


def _arguments() -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--op", type=_names, default=("all_reduce",), help=f"of {', '.join(OPS)}; or all")
    parser.add_argument("--ranks", type=int, default=torch.cuda.device_count(), help="default: every GPU")
    parser.add_argument("--mode", choices=["graph", "eager"], default="graph")
    parser.add_argument("--sizes", type=_sizes, help="comma-separated, 64K and 1M are sizes; default: 256 to 256M")
    parser.add_argument("--seconds", type=float, default=60.0, help="for all sizes together")
    parser.add_argument("--quick", action="store_true", help="fewer sizes, at least 5 blocks instead of 15")
    parser.add_argument("--least-blocks", type=int, default=0, help="of each candidate; default 15")
    parser.add_argument("--most-blocks", type=int, default=41, help="of each candidate")
    parser.add_argument("--algorithms", type=_names, default=(), help="commlib's to pin beside the plan, or all")
    parser.add_argument("--sweep", action="store_true", help="those with grids of parameters")
    for knob in KNOBS:
        parser.add_argument(f"--{knob.replace('_', '-')}", type=_numbers, default=(), help="values to sweep")
    parser.add_argument("--only", type=_names, default=(), help="candidates that are no variants, by label")
    parser.add_argument("--no-peers", dest="peers", action="store_false")
    parser.add_argument("--custom-peer", default="", metavar="PATH", help="vLLM's all-reduce, built: custom_peer.py")
    parser.add_argument("--backend", default="nccl", help="shm: a dry run without GPUs, eager only")
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    arguments.op = OPS if arguments.op == ("all",) else arguments.op
    unknown = set(arguments.op) - set(OPS)
    if unknown:
        parser.error(f"unknown collectives {sorted(unknown)}; there are {', '.join(OPS)}")
    arguments.sizes = arguments.sizes or (QUICK if arguments.quick else SIZES)
    if arguments.ranks < 2:
        parser.error("needs two GPUs")
    return arguments


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(value) for value in text.split(","))


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(size_of(value) for value in text.split(","))


if __name__ == "__main__":
    sys.exit(main())
