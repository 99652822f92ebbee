"""Time matrix products beside collective calls: what both take alone, and what they take from each other.

    commlib run -n 2 python benchmarks/beside.py -o beside.json   # 8192³, and products of Llama 2 70B with their calls
    commlib run -n 2 python benchmarks/beside.py --quick          # seconds, small; without GPUs, too

Ways are commlib on so many multiprocessors at most (`ours 8`; `ours` is not limited), its asynchronous call (`ours,
async`), algorithms of --algorithms, NCCL and other peers. In a turn of a way, products and calls start at once, on two
streams, four times: products alone; a call alone; a call beside products that last longer, which gives what the call
loses and how much of it is hidden; products beside calls that last longer, which gives what the products lose. Figures
are of turns, on the slowest rank: a median, and the tenth and ninetieth percentile. First every way's values are
checked, beside a product.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from two_streams import Clocks, OnCpu, OnGpu, Times
from written import command_line, head, whole_numbers, write

import commlib
from commlib.collectives import COLLECTIVES, Call, Collective
from commlib.collectives.reference import ordered
from commlib.communicator import Communicator
from commlib.env import parse_bytes
from commlib.errors import CommError, Unsupported
from commlib.plan import Plan
from commlib.tools.baselines import load
from commlib.tools.cli.options import python_file
from commlib.tools.report.formats import size_text
from commlib.tools.timing import Candidate, Prepare, Run, buffers_of, pinned, plain_on, public_call, separate_stream
from commlib.tools.timing.candidate import Truth
from commlib.tp.pipeline import leaving

OURS, ASYNC = "ours", "ours, async"
WINDOWS = Path(__file__).with_name("peers") / "nccl_windows.py"
LONGER = 1.5  # what lasts longer takes so many times as long, alone
MOST_CALLS = 200
LAYER = {"hidden": 8192, "keys": 1024, "intermediate": 28672}  # Llama 2 70B
QUICK = 16  # times smaller in every dimension


class Case(NamedTuple):
    """A product [m, k] × [k, n], the collective beside it, and its bytes."""

    name: str
    shape: tuple[int, int, int]
    op: str
    num_bytes: int


@dataclass
class Way:
    """One way to make the calls: its candidate for a collective, and what the products leave to it."""

    label: str
    candidate: Callable[[Collective], Candidate]
    max_sms: int = 0
    leave: int = 0
    tensors: Any = None  # input and output of the case at hand
    calls: list[Run] = field(default_factory=list)  # the one call
    counts: tuple[int, int, int] = (1, 1, 1)  # products, and calls that last shorter and longer
    turns: list[list[Times]] = field(default_factory=list)


class Ways:
    """All ways that there are on the ranks of a communicator; `missing` says why others are not."""

    def __init__(self, comm: Communicator, options: argparse.Namespace) -> None:
        self.comm, self.missing, self._made = comm, dict[str, str](), list[Communicator]()
        gpu = comm.device.type == "cuda"
        self._limited = {sms: self._split(sms) if sms else comm for sms in options.sms}
        later, plain = _later(comm), plain_on(comm.device)
        self.found = [self._ours(sms, 0) for sms in options.sms]
        self.found.append(Way(ASYNC, lambda op: Candidate(ASYNC, later(op), empty=plain)))
        if options.leave and self._can_leave():
            self.found += [self._ours(sms, sms) for sms in options.sms if sms]
        self.found += [self._algorithm(*words.partition(":")[::2]) for words in options.algorithms]
        theirs = [python_file(path, "make", "--peer").make() for path in options.peer]
        self._peers = [load("nccl" if gpu else "torch"), *theirs]
        for peer in self._peers:
            peer.start(comm, gpu)  # its calls may be prepared on another stream than they are made on
            self.found += [Way(label, partial(_of_peer, peer, comm, at)) for at, label in enumerate(peer.labels)]

    def close(self) -> None:
        """Leave what was made."""
        for peer in self._peers:
            peer.stop()
        for made in self._made:
            made.close()

    def _can_leave(self) -> bool:
        try:
            with leaving(1):
                return True
        except (Unsupported, RuntimeError, AssertionError) as error:
            self.missing["left free"] = str(error)
            return False

    def _ours(self, sms: int, leave: int) -> Way:
        comm = self._limited[sms]
        label = f"{OURS} {sms}, left free" if leave else f"{OURS} {sms}" if sms else OURS
        empty = plain_on(comm.device)
        return Way(label, lambda op: Candidate(label, public_call(comm, op), empty=empty), sms, leave)

    def _algorithm(self, name: str, leave: str) -> Way:
        label = f"{name}, {leave} left free" if leave else name
        return Way(label, partial(self._pinned, name, self._split()), leave=int(leave or 0))

    def _split(self, sms: int | None = None) -> Communicator:
        made = self.comm.split(0, self.comm.rank, max_sms=sms)
        assert made is not None
        self._made.append(made)
        return made

    def _pinned(self, name: str, twin: Communicator, op: Collective) -> Candidate:
        algorithm = op.rows(self.comm.backend).get(name)
        if algorithm is None:
            raise Unsupported(f"{op.name} has no {name} on {self.comm.backend}")
        candidate = pinned(twin, op, algorithm, Plan.only({op.name: name}, base=self.comm.plan))
        candidate.enter()
        return candidate


def _later(comm: Communicator) -> Callable[[Collective], Prepare]:
    """Return what makes asynchronous calls, each with its wait."""

    class Asynchronous:
        def __getattr__(self, name: str) -> Any:
            member = getattr(comm, name)

            def call(*args: Any, **options: Any) -> None:
                member(*args, **options, async_op=True).wait()

            return call if callable(member) else member

    stand_in: Any = Asynchronous()
    return partial(public_call, stand_in)


def _of_peer(peer: Any, comm: Communicator, at: int, op: Collective) -> Candidate:
    if peer.reason:
        raise Unsupported(peer.reason)
    candidate: Candidate = peer.candidates(comm, op, False)[at]
    return candidate


class Measured:
    """One case on all ranks."""

    def __init__(self, ways: Ways, clock: OnGpu | OnCpu, case: Case, dtype: torch.dtype) -> None:
        self.comm, self.clock, self.case, self._ways = ways.comm, clock, case, ways
        self.wrong: dict[str, str] = {}
        m, n, k = case.shape
        generator = torch.Generator(self.comm.device).manual_seed(self.comm.rank)
        a, b = (torch.randn(shape, generator=generator, device=self.comm.device) for shape in ((m, k), (n, k)))
        out = torch.empty(m, n, dtype=dtype, device=self.comm.device)
        self.product: Run = partial(torch.mm, a.to(dtype), b.to(dtype).t(), out=out)
        self.op = COLLECTIVES[case.op]
        unit = self.op.num_bytes(Call(self.comm.rank, self.comm.size, 1, dtype))
        self.call = Call(self.comm.rank, self.comm.size, self.op.whole(case.num_bytes // unit), dtype)
        truth = Truth(self.op, self.call, ordered)
        self.ready = [way for way in ways.found if self._prepared(way, truth)]

    def run(self, turns: int, seed: int = 0) -> None:
        """Let the ways take turns, in an order that is random and the same on all ranks."""
        product_s = self._alone([self.product], []).products
        for way in self.ready:
            call_s = self._alone([], way.calls).calls
            products = max(1, min(MOST_CALLS, math.ceil(LONGER * call_s / product_s)))
            way.counts = products, 1, max(1, min(MOST_CALLS, math.ceil(LONGER * products * product_s / call_s)))
            way.turns = []
        order = random.Random(seed)
        for _ in range(turns):
            order.shuffle(self.ready)
            for way in self.ready:
                way.turns.append(self._turn(way))

    def rows(self) -> list[dict[str, Any]]:
        """Return the figures of each way."""
        everyone = self.comm.all_gather_object({way.label: way.turns for way in self.ready})
        return [
            self._row(way, [ranks[way.label] for ranks in everyone]) for way in self._ways.found if way in self.ready
        ]

    def _prepared(self, way: Way, truth: Truth) -> bool:
        """Allocate, and check values beside a product."""
        wrong: list[int] = []

        def allocate() -> None:
            candidate = way.candidate(self.op)
            way.tensors = buffers_of(self.op, self.call, candidate)
            way.calls = [candidate.prepare(*way.tensors, self.call)]

        def check() -> None:
            wrong.append(truth.wrong(*way.tensors, lambda: self._beside(way, 1, 1)))

        if reason := self._fails(allocate) or self._fails(check):
            self._ways.missing[f"{way.label}, {self.case.op}"] = reason
            return False
        if elements := sum(map(sum, self.comm.all_gather_object(wrong))):
            self.wrong[f"{way.label}, {self.case.name}, {self.case.op}"] = f"{elements} elements"
        return not elements

    def _fails(self, attempt: Run) -> str:
        """Return why it fails: what one rank cannot do, no rank does."""
        reason = ""
        try:
            attempt()
        except (CommError, torch.OutOfMemoryError) as error:
            reason = str(error)
        return next((said for said in self.comm.all_gather_object(reason) if said), "")

    def _beside(self, way: Way, products: int, calls: int) -> Times:
        with leaving(way.leave):
            return self.clock.time([self.product] * products, way.calls * calls)

    def _alone(self, products: Sequence[Run], calls: Sequence[Run]) -> Times:
        """Return the slowest rank's median of three."""
        found = [self.clock.time(products, calls) for _ in range(4)][1:]
        own = [statistics.median(times) for times in zip(*found, strict=True)]
        return Times(*(max(times) for times in zip(*self.comm.all_gather_object(own), strict=True)))

    def _turn(self, way: Way) -> list[Times]:
        products, shorter, longer = way.counts
        alone = [self.clock.time([self.product] * products, []), self.clock.time([], way.calls * shorter)]
        return [*alone, self._beside(way, products, shorter), self._beside(way, products, longer)]

    def _row(self, way: Way, of_ranks: Sequence[list[list[Times]]]) -> dict[str, Any]:
        turns = [[_slowest(runs) for runs in zip(*turn, strict=True)] for turn in zip(*of_ranks, strict=True)]
        products, _, longer = way.counts
        m, n, k = self.case.shape
        return {
            **{"case": self.case.name, "m": m, "n": n, "k": k, "op": self.case.op, "bytes": self.case.num_bytes},
            **{"way": way.label, "max_sms": way.max_sms, "left_free": way.leave, "turns": len(turns)},
            **{"products": products, "calls_that_last_longer": longer},
            "product_us": spread([alone.products / products * 1e6 for alone, *_ in turns]),
            "call_us": spread([call.calls * 1e6 for _, call, *_ in turns]),
            "both_us": spread([both.whole * 1e6 for _, _, both, _ in turns]),
            "hidden": spread([1 - (both.whole - alone.products) / call.calls for alone, call, both, _ in turns]),
            "call_slower": spread([both.calls / call.calls for _, call, both, _ in turns]),
            "product_slower": spread([covered.products / alone.products for alone, _, _, covered in turns]),
        }


def _slowest(runs: Sequence[Times]) -> Times:
    return Times(*(max(times) for times in zip(*runs, strict=True)))


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return the median, and the tenth and ninetieth percentile."""
    most = len(values) - 1
    low, high = (sorted(values)[round(share * most)] for share in (0.1, 0.9))
    return {"median": round(statistics.median(values), 4), "low": round(low, 4), "high": round(high, 4)}


def cases(options: argparse.Namespace, ranks: int) -> list[Case]:
    """Return the cube beside large calls, then a layer's products beside the calls of its tokens."""
    smaller = QUICK if options.quick else 1
    side, num_bytes = 8192 // smaller, options.bytes // smaller**2
    cube = [
        Case(f"{side}³", (side, side, side), op, num_bytes) for op in ("all_gather", "reduce_scatter", "all_reduce")
    ]
    hidden, keys, middle = (width // smaller for width in LAYER.values())
    tall = {"qkv": (hidden + 2 * keys) // ranks, "gate_up": 2 * middle // ranks}
    wide = {"out": hidden // ranks, "down": middle // ranks}
    found = cube if options.cube else []
    for tokens in options.tokens:
        rows, moved = tokens // smaller, tokens // smaller * hidden * 2
        found += [Case(f"{name}, {rows}", (rows, n, hidden), "all_gather", moved) for name, n in tall.items()]
        found += [Case(f"{name}, {rows}", (rows, hidden, k), "reduce_scatter", moved) for name, k in wide.items()]
    return found


def table(case: Case, rows: list[dict[str, Any]], clocks: dict[str, Any]) -> str:
    """Return a case as text: a line for each way."""
    m, n, k = case.shape
    mhz = f"; clock {clocks['mhz'][0]:.0f}–{clocks['mhz'][2]:.0f} MHz" if "mhz" in clocks else ""
    lines = ["", f"{case.name}: [{m}, {k}] × [{k}, {n}] beside {case.op} of {size_text(case.num_bytes)}{mhz}"]
    lines += [f"{'way':22}{'product':>9}{'call':>9}{'both':>9} {'product ×':>18} {'call ×':>18} {'hidden %':>14}"]
    for row in rows:
        times = "".join(f"{row[name]['median']:9.1f}" for name in ("product_us", "call_us", "both_us"))
        slower = " ".join(f"{_interval(row[name], 1, 3):>18}" for name in ("product_slower", "call_slower"))
        lines.append(f"{row['way']:22}{times} {slower} {_interval(row['hidden'], 100, 0):>14}")
    return "\n".join(lines)


def _interval(found: dict[str, float], unit: float, digits: int) -> str:
    median, low, high = (f"{found[name] * unit:.{digits}f}" for name in ("median", "low", "high"))
    return f"{median} ({low}–{high})"


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = command_line(__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], help="without it, GPUs where every rank has one")
    parser.add_argument("--quick", action="store_true", help=f"everything {QUICK} times smaller, three turns")
    parser.add_argument("--sms", type=whole_numbers, default=(8, 16, 32, 0), help="multiprocessors of ours; 0: all")
    parser.add_argument("--leave", action="store_true", help="also with products that cuBLAS plans for the others")
    parser.add_argument(
        "--algorithms",
        type=lambda text: text.split(","),
        default=[],
        help="of ours; engine_pull:2 has products that leave 2 multiprocessors free",
    )
    parser.add_argument("--tokens", type=whole_numbers, default=(1024, 4096, 8192), help="of the layer's products")
    parser.add_argument("--no-cube", dest="cube", action="store_false", help="leave 8192³ out")
    parser.add_argument("--bytes", type=parse_bytes, default=256 << 20, help="of the calls beside 8192³: 256M")
    parser.add_argument("--max-bytes", default=None, help="of the symmetric arena, for algorithms that want it: 1G")
    parser.add_argument(
        "--peer", type=Path, action="append", default=[WINDOWS], help="a file with make(), besides NCCL's windows"
    )
    parser.add_argument("--turns", type=int, default=15)
    options = parser.parse_args()
    if options.quick:
        options.turns = min(options.turns, 3)
    return options


def measured(comm: Communicator, options: argparse.Namespace) -> dict[str, str]:
    """Measure every case, print it, and write the figures after each; return whose values were wrong."""
    gpu = comm.device.type == "cuda"
    dtype = torch.bfloat16 if gpu else torch.float32
    clocks = Clocks(gpu)
    clock, ways = (OnGpu if gpu else OnCpu)(comm, clocks), Ways(comm, options)
    rows, wrong = list[dict[str, Any]](), dict[str, str]()
    say = print if comm.rank == 0 else lambda *_, **__: None
    for case in cases(options, comm.size):
        of_case = Measured(ways, clock, case, dtype)
        clocks.seen(comm)
        of_case.run(options.turns)
        found, seen = of_case.rows(), clocks.seen(comm)
        wrong |= of_case.wrong
        rows += [{**row, "clocks": seen} for row in found]
        say(table(case, found, seen), flush=True)
        facts: dict[str, Any] = {"dtype": str(dtype).removeprefix("torch."), "missing": ways.missing}
        facts |= {"wrong": wrong, "no_clocks": clocks.reason}
        facts["multiprocessors"] = torch.cuda.get_device_properties().multi_processor_count if gpu else None
        document = head("beside", comm.size, comm.backend, launched=True)
        write(options.output if comm.rank == 0 else None, {**document, **facts, "rows": rows})
    clock.close()
    ways.close()
    say("\n".join(f"# not here: {label}: {reason}" for label, reason in ways.missing.items()), flush=True)
    say("\n".join(f"# WRONG: {label}: {how}" for label, how in wrong.items()), flush=True)
    return wrong


def main() -> int:
    """Measure on the ranks that were started."""
    options = arguments()
    backend = {"cpu": "shm", "cuda": "nccl", None: "auto"}[options.device]
    with commlib.init(backend=backend, max_bytes=options.max_bytes) as comm:
        with separate_stream(comm.device) if comm.device.type == "cuda" else nullcontext():
            wrong = measured(comm, options)
        return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
