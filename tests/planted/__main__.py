"""Plant one fault at a time in a copy of this checkout, and see whether a test finds it.

    python -m tests.planted                      every fault of faults.json, by the tests beside it
    python -m tests.planted norm_ expect_dtype   those whose name begins so
    python -m tests.planted norm_ --folders all  by every test

A row of faults.json is [name, file, old text, new text, tests]; the old text stands in the file exactly once. The copy
is build/planted; it stays, so that the next run compiles what changed. The checkout itself is only read.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COPY = ROOT / "build/planted"
BUILD = COPY / "build/dev"
FOUND = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.M)
FAILED, NO_TESTS = (1, 2), (4, 5)  # exit codes of pytest; 2: a module cannot be imported any more
TOO_LONG = -1000


@dataclass(frozen=True)
class Fault:
    name: str
    file: str
    old: str
    new: str
    tests: list[str]

    def wrong(self) -> str:
        """Say why it cannot be planted."""
        path = ROOT / self.file
        times = path.read_text(encoding="utf-8").count(self.old) if path.is_file() else 0
        missing = [test for test in self.tests if not (ROOT / test.partition("::")[0]).exists()]
        return f"its old text is {times} times in {self.file}" if times != 1 else " ".join(missing)


def faults(names: list[str]) -> list[Fault]:
    rows = [Fault(*row) for row in json.loads(Path(__file__).with_name("faults.json").read_text(encoding="utf-8"))]
    return [row for row in rows if not names or any(row.name.startswith(name) for name in names)]


def write(path: Path, data: bytes) -> None:
    """Write what is compiled anew, also where its size stays and its second: Python looks at no more."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):
        compiled.unlink()


def copy_tree() -> None:
    """Make the copy what the checkout is now, changes that are not committed included."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = {name for name in subprocess.check_output(listed, cwd=ROOT, text=True).split("\0") if name}
    names = {name for name in names if (ROOT / name).is_file()}
    for name in names:
        path, data = COPY / name, (ROOT / name).read_bytes()
        if not path.is_file() or path.read_bytes() != data:
            write(path, data)
            shutil.copymode(ROOT / name, path)
    for folder in ("benchmarks", "commlib", "csrc", "examples", "tests"):
        for path in (COPY / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts and str(path.relative_to(COPY)) not in names:
                path.unlink()


def make_environment() -> None:
    """Make a .venv of links to the checkout's packages, but with the copy's commlib."""
    theirs = ROOT / ".venv"
    site = next(theirs.glob("lib/python3*/site-packages")).relative_to(theirs)
    shutil.rmtree(COPY / ".venv", ignore_errors=True)
    for folder in (site, Path("bin")):
        (COPY / ".venv" / folder).mkdir(parents=True)
    shutil.copy(theirs / "pyvenv.cfg", COPY / ".venv")
    for path in (theirs / site).iterdir():
        if path.name != "commlib" and not path.name.startswith("_editable"):
            (COPY / ".venv" / site / path.name).symlink_to(path)
    for path in theirs.glob("lib/[!p]*"):  # of packages that are no Python: MPI
        (COPY / ".venv/lib" / path.name).symlink_to(path)
    (COPY / ".venv" / site / "commlib.pth").write_text(f"{COPY}\n", encoding="utf-8")
    for path in (theirs / "bin").iterdir():
        mine = COPY / ".venv/bin" / path.name
        data = path.read_bytes()
        if path.is_symlink():
            mine.symlink_to(path.readlink())
        elif data.startswith(f"#!{theirs}/bin/python".encode()):
            mine.write_bytes(data.replace(bytes(theirs), bytes(COPY / ".venv"), 1))
            shutil.copymode(path, mine)
        else:
            mine.symlink_to(path)


def run(words: list[str | Path], seconds: float) -> tuple[int, str]:
    """Run a program with all that it starts; none of it outlives this."""
    environment = {**os.environ, "VIRTUAL_ENV": str(COPY / ".venv")}
    process = subprocess.Popen(
        words,
        cwd=COPY,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=seconds)
        return process.returncode, output
    except subprocess.TimeoutExpired:
        return TOO_LONG, ""
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def build(jobs: int) -> str:
    """Compile what changed; return what the compiler says if it does not compile."""
    tools = ROOT / ".venv/bin"
    if not (BUILD / "build.ninja").exists():
        make = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}", "-DCMAKE_BUILD_TYPE=Release"]
        run([tools / "cmake", "-S", COPY, "-B", BUILD, *make], 300)
        (COPY / "commlib/_native.abi3.so").unlink(missing_ok=True)
    code, output = run([tools / "ninja", "-C", BUILD, f"-j{jobs}"], 3600)
    library = COPY / "commlib/_native.abi3.so"
    if code == 0 and not library.is_symlink():
        library.symlink_to(BUILD / "_native.abi3.so")
    return output if code else ""


@contextlib.contextmanager
def planted(fault: Fault) -> Iterator[None]:
    path = COPY / fault.file
    whole = path.read_bytes()
    write(path, whole.decode().replace(fault.old, fault.new).encode())
    try:
        yield
    finally:
        write(path, whole)


def try_one(fault: Fault, options: argparse.Namespace) -> str:
    """Return "killed", "survived" or "error", and print a line of the table."""
    tests = ["tests"] if options.folders == "all" else fault.tests
    chosen = "not slow" if options.folders == "gate" else "slow or not slow"
    pytest = [COPY / ".venv/bin/python", "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", chosen]
    with planted(fault):
        begun = time.monotonic()
        wrong = build(options.jobs)
        built = time.monotonic()
        code, output = (0, wrong) if wrong else run([*pytest, *tests], options.seconds)
    spent, found = time.monotonic() - built, FOUND.search(output)
    if wrong or code in NO_TESTS:
        result, by = "error", output.strip()[-600:]
    elif code == TOO_LONG:
        result, by = "error", f"no end after {options.seconds:g} s: {' '.join(tests)}"
    elif code == 0:
        result, by = "survived", " ".join(tests)
    else:
        result, by = "killed", found[1] if found and code in FAILED else f"exit code {code} in {' '.join(tests)}"
        wrong = build(options.jobs)
        if wrong or run([*pytest, *([found[1]] if found else tests)], options.seconds)[0] != 0:
            result, by = "error", f"without the fault, too: {by}"
    print(f"{fault.name:28} {result:9} {spent:6.1f} s  {by}  (built in {built - begun:.1f} s)", flush=True)
    if options.verbose:
        print(output)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.planted", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="only faults whose name begins so")
    parser.add_argument("--folders", choices=("gate", "all"), default="gate", help="a row's tests, or all tests")
    parser.add_argument("--jobs", type=int, default=2, help="compilers at a time (default: 2)")
    parser.add_argument("--seconds", type=float, default=3600, help="for the tests of one fault (default: 3600)")
    parser.add_argument("--verbose", action="store_true", help="show what the tests print")
    options = parser.parse_args()
    chosen = faults(options.names)
    wrong = [f"{fault.name}: {why}" for fault in chosen if (why := fault.wrong())]
    if wrong or not chosen:
        print("\n".join(wrong) or f"no fault is named {' '.join(options.names)}", file=sys.stderr)
        return 2
    copy_tree()
    make_environment()
    if output := build(options.jobs):
        print(f"the checkout does not compile:\n{output}", file=sys.stderr)
        return 2
    results = [try_one(fault, options) for fault in chosen]
    print(", ".join(f"{results.count(result)} {result}" for result in ("killed", "survived", "error")))
    return int(results.count("killed") < len(results))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
