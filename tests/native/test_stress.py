"""Native programs: stress (`make sanitize` runs it, too), footprints of kernels, and what no other test builds."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "stress"


def tool(name: str) -> str:
    path = Path(sys.prefix) / "bin" / name
    if not path.exists():
        pytest.skip(f"{name} is not in this environment; `make setup` installs it")
    return str(path)


def installed_core() -> list[str]:
    """Return the option that takes what `make setup` built, if this is an editable install: it is what users run."""
    built = ROOT / "build/dev/libcommlib_core.a"
    return [f"-DCOMMLIB_CORE={built}"] if built.exists() else []


@pytest.fixture(scope="module")
def stress() -> str:
    """Build the program, or bring it up to date: a few seconds, half a minute where the core is to be built, too."""
    options = ["-DCOMMLIB_TESTS=ON", "-DCOMMLIB_BINDING=OFF", "-DCMAKE_BUILD_TYPE=Release", *installed_core()]
    ninja = tool("ninja")
    configure = [tool("cmake"), "-S", ROOT, "-B", BUILD, "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}", *options]
    for command in (configure, [ninja, "-C", BUILD, "stress"]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return str(BUILD / "stress")


@pytest.mark.timeout(300)  # a build on a busy machine
@pytest.mark.parametrize("options", [[], ["--ranks", "9"], ["--faults-only"]], ids=["mixed", "crowded", "faults"])
def test_threads_as_ranks_survive_random_mixes_of_all_operations(stress: str, options: list[str]) -> None:
    done = subprocess.run([stress, "--seconds", "1", *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 errors" in done.stdout


@pytest.mark.parametrize("program", ["fuzz_radix", "radix_rates"])
def test_programs_that_no_other_test_builds_compile(program: str) -> None:
    includes = [f"-I{ROOT / folder}" for folder in ("csrc", "csrc/include")]
    source = ROOT / "tests/native" / f"{program}.cc"
    subprocess.run(["g++", "-std=c++17", "-fsyntax-only", *includes, source], check=True)


HOPPER = 132  # multiprocessors

PIPES = "16 1"  # blocks, and of a cluster
PACKETS = "128 1"
WHOLE = "256 1"  # as many blocks as there may be
ROWS = "128 4"
FEW_ROWS = "32 4"
VENDOR = "vendor"


@pytest.fixture(scope="module")
def footprint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("footprint") / "footprint"
    words = [os.environ.get("CXX", "c++"), "-std=c++17", "-Icsrc/include", "-Icsrc", "tests/native/footprint.cc"]
    subprocess.run([*words, "-o", str(made)], cwd=ROOT, check=True)
    return made


@pytest.mark.parametrize(
    ("kernels", "fit"),
    [
        # The first communicator leaves one multiprocessor, in which the other goes on; that leaves more to the program.
        ([WHOLE, WHOLE], True),
        ([WHOLE, WHOLE, WHOLE], False),
        ([WHOLE, PACKETS], True),
        ([WHOLE, PIPES], True),
        ([WHOLE, PIPES, PIPES], False),
        ([PIPES] * 7, True),
        ([PIPES] * 8, False),  # the program's clusters find no place beside seven of them
        ([PACKETS] * 2, True),
        ([PACKETS] * 3, False),
        ([WHOLE, VENDOR], False),  # NCCL's blocks find no place before ours have ended
        ([VENDOR, WHOLE], True),  # beside the second communicator they do
        ([VENDOR, PIPES], True),
        ([VENDOR] * 4, True),
        ([VENDOR] * 5, False),
        ([WHOLE, ROWS], False),
        ([ROWS, WHOLE], True),
        ([ROWS, FEW_ROWS], False),  # what is free may lie three here and three there
        ([FEW_ROWS, VENDOR], True),
        ([FEW_ROWS, FEW_ROWS], True),
    ],
)
def test_side_by_side_only_where_each_is_sure_of_its_place(footprint: Path, kernels: list[str], fit: bool) -> None:
    done = subprocess.run([footprint, str(HOPPER)], input="|".join(kernels), capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["yes" if fit else "no"]
