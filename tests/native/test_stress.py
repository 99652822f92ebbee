"""The native stress program, without Python or torch in the way; `make sanitize` runs it under ASan, UBSan and TSan."""

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
