"""Random mixtures of calls on GPUs, one after the other, within so many seconds; needs a checkout.

    python benchmarks/mixtures.py 600 -o mixtures.json

stops at the first wrong value or error: `--seed` repeats that mixture. `--collectives all_reduce,all_reduce_rms_norm`
has these alone, so more of each. If a round takes longer than 10 s, it prints once what `commlib debug` says.
"""

import argparse
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from tempfile import NamedTemporaryFile

import torch

from commlib.tools.report import document as files
from commlib.tools.report.formats import json_text
from commlib.tools.testing import RankError, Ranks
from commlib.tools.timing import fingerprint

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the ranks, too, import the mixtures by this path

from tests.gpu.mixtures import (
    LONGEST_S,
    NAMES,
    ROUND,
    ROUNDS,
    ROUNDS_DONE,
    SEED,
    SINCE,
    figures_of,
    mix,
)
from tests.gpu.steady import first

TIMEOUT_S, LONG_S = 20.0, 10.0
MIXTURE_S, SPARE_S = 120.0, 40.0  # the deadline of one, and what must be left of the time for one to start


def go_on(ranks: Ranks, end: float, seed: int, path: str, only: Sequence[str]) -> tuple[int, str]:
    """Run mixtures from a seed on, until the time is over or one fails: how many did not, and what was wrong."""
    done, spare, figures = 0, min(SPARE_S, (end - time.monotonic()) / 4), figures_of(path)
    while not done or time.monotonic() < end - spare:
        ranks.deadline_s = min(max(end - time.monotonic(), spare), MIXTURE_S)
        try:
            wrong = first(ranks.run(mix, seed + done, ROUNDS, path, only))
        except RankError as error:
            wrong = f"round {int(figures[ROUND])}: {error}"
        if wrong:
            return done, wrong
        done += 1
    return done, ""


def watch(path: str, over: threading.Event) -> None:
    """Once a round takes too long, print what `commlib debug` says of the ranks below this process."""
    figures = figures_of(path)
    while not over.wait(0.5):
        since = float(figures[SINCE])
        if since and time.monotonic() - since > LONG_S:
            place = f"seed {int(figures[SEED])}, round {int(figures[ROUND])}"
            print(f"{place}: not over after {LONG_S:g} s; commlib debug says", file=sys.stderr, flush=True)
            command = [sys.executable, "-m", "commlib", "debug", str(os.getpid())]
            subprocess.run(command, stdout=sys.stderr, timeout=60, check=False)
            return


def main() -> None:
    """Run mixtures until the time is over."""
    begun = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seconds", type=float)
    parser.add_argument("--seed", type=int, default=1000, help="of the first one; the next ones follow")
    parser.add_argument("--ranks", type=int, default=torch.cuda.device_count())
    parser.add_argument("--collectives", type=lambda text: text.split(","), default=[], help="only these")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    if unknown := set(options.collectives).difference(NAMES):
        parser.error(f"{', '.join(sorted(unknown))}: expected some of {', '.join(NAMES)}")
    done, wrong, over = 0, "", threading.Event()
    with NamedTemporaryFile() as file:
        figures, watcher = figures_of(file.name), threading.Thread(target=watch, args=(file.name, over))
        watcher.start()
        try:
            with Ranks(
                options.ranks, backend="nccl", timeout_s=TIMEOUT_S, max_bytes=64 << 20, deadline_s=MIXTURE_S
            ) as ranks:
                done, wrong = go_on(ranks, begun + options.seconds, options.seed, file.name, options.collectives)
        except (RankError, KeyboardInterrupt) as error:
            wrong = str(error) or "interrupted"
        finally:
            over.set()
            watcher.join()
        rounds, calls, replays = map(int, figures[ROUNDS_DONE:LONGEST_S])
        row = {"seed": options.seed, "mixtures": done, "rounds": rounds, "calls": calls, "replays": replays}
        row |= {"seconds": round(time.monotonic() - begun), "longest_round_s": round(float(figures[LONGEST_S]), 3)}
    wrong = wrong and f"seed {options.seed + done}: {wrong}"
    print(", ".join(f"{name} {figure}" for name, figure in row.items()))
    if wrong:
        print(wrong, file=sys.stderr)
    if options.output:
        document = {
            "schema": "commlib.mixtures",
            "version": 2,
            "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "command": " ".join(["python benchmarks/mixtures.py", *sys.argv[1:]]),
            "fingerprint": fingerprint("nccl"),
            "ranks": options.ranks,
            "rows": [row | {"wrong": wrong}],
        }
        files.write(options.output, json_text(document))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
