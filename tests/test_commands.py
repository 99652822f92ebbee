"""Every command that a page prints works as printed, from a fresh shell in a checkout; where it cannot run, it parses.

A block of commands (`sh`: each line is one; `console`: those after `$ `, and what must be in their output below) runs,
all of a page in one shell. A word on its fence says why it does not: `gpu`, `slow` (a minute or more), `elsewhere`
(another machine, a package index, a diff that is not applied). Its files, options and targets must exist even so.
"""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from commlib.tools.cli import main
from tests.pages import FENCE, ROOT, Block, blocks_of, text_of

PAGES = ["README.md", "CONTRIBUTING.md", *sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/*.md"))]
REASONS = {"gpu", "slow", "elsewhere"}
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"
LEFT_OUT = {".git", ".venv", "build", "dist"}
ACTIVATE = ". .venv/bin/activate"
MARK = "\x1e"


def commands_of(block: Block) -> Iterator[tuple[str, list[str]]]:
    """Yield (command, lines that its output must have)."""
    if block.language == "console":
        for step in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
            lines = step.replace("\\\n", " ").strip().splitlines()
            yield lines[0], lines[1:]
    else:
        yield from ((line, []) for line in block.text.replace("\\\n", " ").splitlines())


def commands(page: str, *, run: bool) -> list[tuple[str, list[str]]]:
    shells = [block for block in blocks_of(page) if block.language in {"sh", "bash", "console"}]
    return [pair for block in shells if run is REASONS.isdisjoint(block.words) for pair in commands_of(block)]


# Name → text of each program that a page shows, or has its reader save.
PROGRAMS = {block.words["file"]: block.text for page in PAGES for block in blocks_of(page) if "file" in block.words}


@pytest.fixture
def checkout(tmp_path: Path, quick_python: Path) -> Path:
    """A checkout that commands may write into, whose environment starts Python in no time."""
    for path in ROOT.iterdir():
        if path.name not in LEFT_OUT:
            (tmp_path / path.name).symlink_to(path)
    binaries = tmp_path / ".venv/bin"
    binaries.mkdir(parents=True)
    for name, text in PROGRAMS.items():
        if not (tmp_path / name).exists():
            (tmp_path / name).write_text(text, encoding="utf-8")
    places = f"{quick_python.parent}:{Path(sys.executable).parent}"
    (binaries / "activate").write_text(f"PATH={places}:$PATH\n", encoding="utf-8")
    return tmp_path


def shell(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a script in a shell that has nothing but a home and the system's PATH."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    (home / "script").write_text(script, encoding="utf-8")
    fresh = {"HOME": str(home), "PATH": SYSTEM_PATH, "COLUMNS": "120", "LANG": "C.UTF-8"}
    return subprocess.run(
        ["bash", "-e", home / "script"],
        cwd=folder,
        env=fresh,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
        check=False,
    )


def said(line: str, output: str) -> bool:
    """Say whether a line that a page shows is in the output; … stands for whatever is there."""
    pattern = ".*".join(map(re.escape, line.split("…")))
    return any(re.fullmatch(pattern, printed) for printed in output.splitlines())


@pytest.mark.timeout(300)  # all commands of a page, on a busy machine
@pytest.mark.parametrize(
    "page",  # the README's commands run at the gate
    [pytest.param(p, marks=[pytest.mark.slow] * (p != "README.md")) for p in PAGES if commands(p, run=True)],
)
def test_the_commands_of_a_page_run_as_printed(page: str, checkout: Path) -> None:
    steps = commands(page, run=True)
    if ACTIVATE not in (command for command, _ in steps):  # the README says it once, for all pages
        steps = [(ACTIVATE, []), *steps]
    done = shell("".join(f"printf '{MARK}'\n{command}\n" for command, _ in steps), checkout)
    outputs = done.stdout.split(MARK)[1:]
    assert done.returncode == 0, f"$ {steps[len(outputs) - 1][0]}\n{outputs[-1]}"
    for (command, expected), output in zip(steps, outputs, strict=True):
        assert [line for line in expected if not said(line, output)] == [], f"$ {command}\n{output}"


def test_programs_that_pages_show_compile_and_are_the_files_they_name() -> None:
    for name, text in PROGRAMS.items():
        compile(text, name, "exec")
        assert not (ROOT / name).exists() or text == (ROOT / name).read_text(encoding="utf-8")


def simple_commands(line: str) -> Iterator[list[str]]:
    """Yield the commands of a line: what stands between |, && and the like, without variables set before it."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if set(word) <= set("|&;<>()"):
            yield words[next((at for at, word in enumerate(words) if "=" not in word), 0) :]
            words = []
        else:
            words.append(word)


def check(words: list[str]) -> None:
    """Refuse a command whose files, options, targets or extras do not exist."""
    for at, word in enumerate(words):
        if word == "commlib":
            main(words[at + 1 :], standalone_mode=False)
        for path in re.findall(r"(?:(?:benchmarks|docs|examples|launch|tests)/[\w./]+|[\w/]+\.py)\b", word):
            assert path in PROGRAMS or (ROOT / path).exists(), f"no page or folder has {path}"
    if words[:1] == ["make"]:
        dry = subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
        assert dry.returncode == 0, dry.stderr


@pytest.fixture
def parse_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have command lines parsed, and nothing done; files may be made by another command."""
    monkeypatch.setattr(click.Command, "invoke", lambda self, context: None)
    monkeypatch.setattr(click.Path, "convert", lambda self, value, *_: Path(value))


@pytest.mark.usefixtures("parse_only")
def test_commands_that_do_not_run_here_are_right_as_far_as_words_tell() -> None:
    lines = [line for page in PAGES for line, _ in commands(page, run=False)]
    for page in PAGES:  # in its sentences, what has no -n N is a name
        lines += re.findall(r"`([^`]*\bcommlib \w+ [^`]*-n \d[^`]*)`", FENCE.sub("", text_of(page)))
    for words in [words for line in lines for words in simple_commands(line)]:
        check(words)
