"""The docs are true: what they say to run runs, and the files, functions and constants they name exist.

A fenced block is executed when its info string asks for it (test_commands.py runs the commands):

    python ranks=N       runs on N live ranks, with `comm`, `torch` and `commlib`; `checked`: in checked mode
    json plan            is a plan
    diff                 applies to the sources as they are, as do the files docs/*/*.diff
"""

import re
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
import torch

import commlib
from commlib import env
from commlib.errors import KINDS
from commlib.plan import Plan
from commlib.tools.testing import Ranks
from tests import pages
from tests.pages import FENCE, POLICIES, ROOT

PAGES = sorted(path.stem for path in (ROOT / "docs").glob("*.md"))
ALL = [*(f"docs/{page}.md" for page in PAGES), "README.md", "CONTRIBUTING.md", *POLICIES]


def text_of(page):
    return pages.text_of(f"docs/{page}.md")


def blocks(language, word=None):
    found = [block for page in PAGES for block in pages.blocks_of(f"docs/{page}.md")]
    return [block for block in found if block.language == language and (word is None or word in block.words)]


def each(found):
    slow = [[pytest.mark.slow] if "torch.compile(" in block.text else [] for block in found]
    named = [pytest.param(block, id=name_of(block), marks=marks) for block, marks in zip(found, slow, strict=True)]
    return pytest.mark.parametrize("block", named)


def name_of(block):
    return f"{Path(block.page).stem}:{block.line}"


def execute(comm, source):
    """Run a block on this rank, on a communicator that it may end."""
    own = comm.split(0, comm.rank)
    exec(source, {"comm": own, "torch": torch, "commlib": commlib})
    own.close()


@each([block for block in blocks("python", "ranks") if "checked" not in block.words])
def test_an_example_runs_on_live_ranks(shm_ranks, block):
    shm_ranks.run(execute, block.text, world=int(block.words["ranks"]))


@each(blocks("python", "checked"))
def test_an_example_runs_in_checked_mode(block):
    with Ranks(int(block.words["ranks"]), backend="shm", checked=True, max_bytes=0) as ranks:
        ranks.run(execute, block.text)


@each(blocks("json", "plan"))
def test_a_plan_is_one(block):
    assert Plan.parse(block.text, block.page).rules


DIFFS = {name_of(block): block.text for block in blocks("diff")}
DIFFS |= {path.name: path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*/*.diff"))}


@pytest.mark.parametrize("name", DIFFS)
def test_a_diff_applies(name):
    command = ["git", "-C", str(ROOT), "apply", "--check", "--unidiff-zero", "-"]
    result = subprocess.run(command, input=DIFFS[name], capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"show it as it is now: {result.stderr}"


def test_the_layers_are_those_of_the_contract():
    (block,) = blocks("layers")
    shown = {}
    for height, line in enumerate(block.text.splitlines()):
        names = re.split(r"\s{2,}", line)[0]
        shown |= dict.fromkeys(names.split(", "), height)
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")  # Python 3.10 has no tomllib
    layers, _instruments = re.findall(r"^layers = \[\n(.*?)^\]", project, re.MULTILINE | re.DOTALL)
    levels = []
    for layer in re.findall(r'"(.*)"', layers):
        names = [name.strip() for name in re.split(r"[:|]", layer) if not name.strip().startswith(("(", "_"))]
        levels += [[shown[name] for name in names]] if names else []
    for above, below in pairwise(levels):
        assert max(above) <= min(below)


def test_constants_are_those_of_the_code():
    layout = (ROOT / "csrc/shm/layout.h").read_text(encoding="utf-8")
    units = {"KiB": 1 << 10, "MiB": 1 << 20}
    rows = re.findall(r"^\| `(k\w+)` \| (\d+)(?: (\w+))? \|", text_of("shm"), re.MULTILINE)
    assert rows
    for name, number, unit in rows:
        (expression,) = re.findall(rf"constexpr \w+ {name} = ([\d <]+);", layout)
        value = eval(expression)
        assert value == int(number) * units.get(unit, 1), name


def test_the_path_of_a_call_names_functions_that_exist():
    rows = re.findall(r"^\| \d+ \| `([^`]+)` \| `(\w+)` \|", text_of("shm") + text_of("gpu"), re.MULTILINE)
    assert len(rows) > 15
    for path, function in rows:
        source = (ROOT / path).read_text(encoding="utf-8")
        assert re.search(rf"\b{function}\(|\bclass {function}\b|\bstruct {function}\b", source), (path, function)


def test_every_kind_of_error_is_explained():
    table = text_of("operations")
    assert [kind for kind in KINDS if f"| `{kind}` |" not in table] == []


def test_the_index_links_every_page():
    listed = set(re.findall(r"\]\((\w+\.md)\)", text_of("index")))
    assert listed == {path.name for path in (ROOT / "docs").glob("*.md")} - {"index.md"}


def test_the_pages_by_hand_are_within_their_budget():
    (budget,) = re.findall(r"^words_of_docs = (\d+)", pages.text_of("pyproject.toml"), re.MULTILINE)
    by_hand = [text for text in map(text_of, PAGES) if "Generated by `make docs`" not in text]
    assert sum(len(text.split()) for text in by_hand) <= int(budget), "cut before you add: [tool.commlib.budgets]"


def test_variables_that_pages_name_exist():
    macros = (
        re.findall(r"#define (COMMLIB_\w+)", path.read_text(encoding="utf-8")) for path in ROOT.glob("csrc/**/*.h")
    )
    known = {variable.name for variable in env.VARIABLES}.union(*macros)
    for page in set(PAGES) - {"extending"}:  # it adds one
        assert set(re.findall(r"\bCOMMLIB_[A-Z_]+\b", text_of(page))) - known == set(), page


def test_files_that_pages_name_exist():
    for page in ALL:
        text = pages.text_of(page)
        made_here = set(re.findall(r"^--- /dev/null\n\+\+\+ b/(\S+)", text, re.MULTILINE))
        named = set(re.findall(r"`((?:commlib|csrc|docs|tests|benchmarks|launch)/[\w./*-]*)`", text))
        assert [path for path in sorted(named - made_here) if not any(ROOT.glob(path))] == [], page


def test_links_lead_somewhere():
    for page in ALL:
        text = FENCE.sub("", pages.text_of(page))
        links = [link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link]
        assert [link for link in links if not (ROOT / page).parent.joinpath(link).exists()] == [], page
