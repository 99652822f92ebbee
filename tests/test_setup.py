"""launch/setup.sh installs, compiles and removes what it should; its tools here only write down how they are called."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.pages import ROOT

TOOL = '#!/bin/bash\necho "${0##*/} $*" >>calls\n'
# Installing the project leaves what an installation leaves; everything else Python is asked succeeds.
PYTHON = (
    TOOL + 'case "$*" in *--editable*) mkdir -p build/dev && touch build/dev/build.ninja .venv/bin/commlib ;; esac\n'
)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    binaries = tmp_path / ".venv/bin"
    binaries.mkdir(parents=True)
    (tmp_path / ".venv/commlib-mode").write_text("--cpu\n", encoding="utf-8")
    (tmp_path / "launch").mkdir()
    for name in ("launch/setup.sh", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    for name, text in (("python", PYTHON), ("ninja", TOOL), ("cmake", TOOL), ("commlib", TOOL)):
        write(binaries / name, text)
    return tmp_path


def write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


def set_up(checkout: Path) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Run it; return how it ended and the calls of its tools, without Python's small questions."""
    (checkout / "calls").write_text("", encoding="utf-8")
    command = ["env", f"PYTHON={checkout}/.venv/bin/python", "CXX=true", "launch/setup.sh", "--cpu"]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False)
    calls = (checkout / "calls").read_text(encoding="utf-8").splitlines()
    return done, [call for call in calls if not call.startswith(("python -c", "python -VV"))]


def test_what_is_installed_is_not_installed_again_only_compiled(checkout: Path) -> None:
    first, calls = set_up(checkout)
    assert first.returncode == 0, first.stderr
    assert "--no-build-isolation --config-settings build-dir=build/dev --editable" in calls[-1]
    second, calls = set_up(checkout)
    assert second.returncode == 0, second.stderr
    assert [call.split()[0] for call in calls] == ["ninja", "cmake"]


@pytest.mark.parametrize("change", ["echo '# more' >>pyproject.toml", "echo '# more' >>launch/setup.sh", "rm -r build"])
def test_another_list_of_packages_and_what_make_clean_removed_are_installed(checkout: Path, change: str) -> None:
    set_up(checkout)
    subprocess.run(change, shell=True, cwd=checkout, check=True)
    assert "--editable" in set_up(checkout)[1][-1]


def test_an_installation_that_failed_is_made_again(checkout: Path) -> None:
    set_up(checkout)
    before = (checkout / "pyproject.toml").read_text(encoding="utf-8")
    (checkout / "pyproject.toml").write_text(before + "# more\n", encoding="utf-8")
    write(checkout / ".venv/bin/python", PYTHON + 'case "$*" in *install*) exit 1 ;; esac\n')
    assert set_up(checkout)[0].returncode == 1
    write(checkout / ".venv/bin/python", PYTHON)
    (checkout / "pyproject.toml").write_text(before, encoding="utf-8")
    assert "--editable" in set_up(checkout)[1][-1]


def test_a_source_that_does_not_compile_fails_and_installs_nothing(checkout: Path) -> None:
    set_up(checkout)
    write(checkout / ".venv/bin/ninja", TOOL + "exit 1\n")
    done, calls = set_up(checkout)
    assert done.returncode == 1 and "does not compile" in done.stderr
    assert [call.split()[0] for call in calls] == ["ninja"]
