"""Algorithms from outside the tree: their rows join the tables, their native halves are compiled, ranks compare."""

import json
import re
from pathlib import Path

import pytest

from commlib import env
from commlib.build import plugin_code
from commlib.build.device_code import compile_kernel, expression
from commlib.build.plugin_code import load_plugin
from commlib.collectives import COLLECTIVES
from commlib.collectives.plugins import Tables, asked_for
from commlib.errors import BuildFailed
from tests.plugins import SAME_BITS, Run, failures, on_ranks

EXTENDING = (Path(__file__).parents[2] / "docs" / "extending.md").read_text(encoding="utf-8")


def rows(name: str, backend: str = "shm", more: str = "") -> str:
    head = "from commlib.collectives import Algorithm\n"
    return f'{head}ALGORITHMS = {{"all_reduce": [Algorithm("{name}", "{backend}"{more})]}}\n'


def shown(path: str) -> str:
    """What a diff of docs/extending.md gives a new file."""
    lines = EXTENDING.split(f"+++ b/{path}\n", 1)[1].splitlines()[1:]
    return "\n".join(line[1:] for line in lines[: [line[:1] for line in lines].index("`")]) + "\n"


@pytest.fixture(scope="session")
def leader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The plugin of docs/extending.md, in a folder of its own."""
    path = tmp_path_factory.mktemp("plugin") / "leader.py"
    found = re.search(r"this `leader\.py`:\n\n```python[^\n]*\n(.*?)```", EXTENDING, re.DOTALL)
    assert found is not None
    path.write_text(found[1])
    path.with_name("shm_leader.cc").write_text(shown("csrc/collectives/all_reduce/shm_leader.cc"))
    return path


def test_a_plugin_of_shm_gives_the_bits_of_commlibs_own(with_plugins: Run, leader: Path) -> None:
    said = on_ranks(with_plugins, str(leader), SAME_BITS, "shm", "shm_oneshot", "shm_leader")
    assert said.count("same bits by shm_leader") == 2, said


def test_commands_see_a_plugin_as_any_other_row(with_plugins: Run, leader: Path, tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    words = ("bench", "all_reduce", "-n", "2", "-b", "1K", "-e", "1K", "--algorithms", "shm_leader", "--time", "1")
    done = with_plugins(str(leader), "-m", "commlib", *words, "-o", str(found))
    assert done.returncode == 0, done.stderr
    measured = [row for row in json.loads(found.read_text())["rows"] if row["algorithm"] == "shm_leader"]
    assert [(row["size"], row["wrong"]) for row in measured] == [(1024, 0)] * 2  # out of place, in place
    plan = tmp_path / "plan.json"
    ranges = '[{"max_bytes": 65536, "algorithm": "shm_leader", "params": {"chunk_bytes": 65536}}]'
    plan.write_text(
        f'{{"schema": "commlib.plan", "version": 2, "rules": [{{"op": "all_reduce", "ranges": {ranges}}}]}}'
    )
    explain = ("-m", "commlib", "plan", "explain", "all_reduce", "--bytes", "4K", "--plan", str(plan))
    assert "runs shm_leader" in with_plugins(str(leader), *explain).stdout
    without = with_plugins("", *explain)
    assert without.returncode == 2
    assert "all_reduce has no algorithm 'shm_leader'" in without.stderr
    assert "and what COMMLIB_PLUGINS adds" in without.stderr


def test_ranks_with_different_plugins_fail_together_and_say_who_has_which(with_plugins: Run, leader: Path) -> None:
    said = failures(with_plugins, "", str(leader), "PlanMismatch")
    assert said.count("(rank 0: none, rank 1: leader.py with all_reduce:shm_leader, digest ") == 2
    assert said.count("start every rank with the same COMMLIB_PLUGINS") == 2


def test_a_plugin_that_one_rank_cannot_load_is_an_error_of_all(with_plugins: Run, leader: Path) -> None:
    said = failures(with_plugins, str(leader), "/nowhere/lost.py", "ValueError")
    assert said.count("rank 1: COMMLIB_PLUGINS: plugin /nowhere/lost.py cannot be loaded") == 2


BROKEN = '#include "shm/algorithm.h"\nint broken() { return nothing; }\n'
SILENT = '#include "shm/algorithm.h"\nnamespace commlib::shm { class Group; }\n'


@pytest.mark.parametrize(
    ("code", "kind", "said"),
    [
        (
            BROKEN,
            "BuildFailed",
            ("rank 0: ", "cannot compile", "was not declared in this scope", "to repeat it: g++ -std="),
        ),
        (SILENT, "CommError", ("COMMLIB_SHM_ALGORITHM(all_reduce, shm_mine, function)",)),
        ("void missing();\nstatic const int at_start = (missing(), 0);\n", "BuildFailed", ("cannot be loaded",)),
    ],
)
def test_what_is_wrong_with_a_native_half_is_said_on_all_ranks(with_plugins, tmp_path, code, kind, said) -> None:
    plugin = tmp_path / "mine.py"
    plugin.write_text(rows("shm_mine"))
    plugin.with_name("shm_mine.cc").write_text(code)
    found = failures(with_plugins, str(plugin), str(plugin), kind)
    assert all(found.count(words) >= 2 for words in said), found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def f(:\n", "plugin.py, line 1: "),
        ("import nowhere_at_all\n", "ModuleNotFoundError: No module named 'nowhere_at_all'"),
        ("rows = 1\n", "plugin.py has no ALGORITHMS"),
        ("ALGORITHMS = []\n", "plugin.py has no ALGORITHMS"),
        ('ALGORITHMS = {"all_reduces": []}\n', "there is no collective 'all_reduces'; there are all_reduce, "),
        ('ALGORITHMS = {"all_reduce": ["shm_mine"]}\n', "but must be a list of Algorithm"),
        (rows("shm_oneshot"), "all_reduce has an algorithm 'shm_oneshot' already; give yours another name"),
        (rows("torch_mine", "torch", ", run=print").replace("]}", "] * 2}"), "an algorithm 'torch_mine' already"),
        (rows("shm_none"), "shm_none.cc"),
        (rows("shm mine"), "the name must be one of C++"),
        (rows("mpi_mine", "mpi"), "there is no backend 'mpi'"),
        (rows("lsa_mine", "nccl"), "needs kernel="),
        (rows("lsa_mine", "nccl", ', kernel="all_reduce"'), "there is no "),
        (rows("torch_mine", "torch"), "needs run="),
    ],
)
def test_what_is_wrong_with_a_plugin_is_said_with_its_file(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "plugin.py"
    path.write_text(text)
    tables = Tables(COLLECTIVES.values())
    tables.load([("COMMLIB_PLUGINS", str(path))])
    with pytest.raises(ValueError, match=re.escape(said)) as error:
        tables.check()
    assert str(error.value).startswith("COMMLIB_PLUGINS: ")
    assert str(path) in str(error.value)
    assert list(tables) == list(COLLECTIVES)
    assert tables["all_reduce"].algorithms == COLLECTIVES["all_reduce"].algorithms


def test_two_plugins_cannot_have_the_same_name(leader: Path) -> None:
    tables = Tables(COLLECTIVES.values())
    tables.load([("COMMLIB_PLUGINS", str(leader)), ("entry point again", str(leader))])
    assert [row.name for row in tables["all_reduce"].algorithms].count("shm_leader") == 1
    (fault,) = tables.faults
    assert fault.startswith("entry point again: ")
    assert "all_reduce has an algorithm 'shm_leader' already" in fault


def test_files_modules_and_entry_points_are_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(env.PLUGINS.name, "/a/one.py:two.modules, three,")
    dist = tmp_path / "stranger-1.0.dist-info"
    dist.mkdir()
    (dist / "METADATA").write_text("Metadata-Version: 2.1\nName: stranger\nVersion: 1.0\n")
    (dist / "entry_points.txt").write_text("[commlib.plugins]\nmine = stranger.rows\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    named = [("COMMLIB_PLUGINS", name) for name in ("/a/one.py", "two.modules", "three")]
    assert asked_for() == [*named, ("entry point mine", "stranger.rows")]


def test_a_python_half_for_torch_runs_where_the_plan_names_it(with_plugins: Run, tmp_path: Path) -> None:
    plugin = tmp_path / "ours.py"
    plugin.write_text(
        "from commlib.collectives import Algorithm\n"
        "from commlib.collectives.all_reduce import torch_direct\n"
        "def mine(backend, *given):\n"
        "    print('mine')\n"
        "    return torch_direct(backend, *given)\n"
        'ALGORITHMS = {"all_reduce": [Algorithm("torch_mine", "torch", run=mine)]}\n'
    )
    script = """
import torch, commlib
from commlib.plan import Plan
with commlib.init(backend="torch", timeout_s=60) as comm:
    x = torch.full((7,), comm.rank + 1.0)
    assert comm.all_reduce(x.clone()).tolist() == [3.0] * 7
    print("then")
    comm.use(Plan.only({"all_reduce": "torch_mine"}, base=comm.plan))
    assert comm.all_reduce(x).tolist() == [3.0] * 7
"""
    lines = on_ranks(with_plugins, str(plugin), "-c", script).splitlines()
    for rank in ("[0]", "[1]"):
        assert [line for line in lines if line.startswith(rank)] == [f"{rank} then", f"{rank} mine"]


def test_device_code_of_a_plugin_compiles_from_its_own_folder(tmp_path: Path) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    plugin = tmp_path / "mine.py"
    plugin.write_text(rows("lsa_ll_twoshot", "nccl", ', kernel="all_reduce"'))
    plugin.with_name("lsa_ll_twoshot.cu").write_text(shown("csrc/collectives/all_reduce/lsa_ll_twoshot.cu"))
    tables = Tables(COLLECTIVES.values())
    tables.load([("COMMLIB_PLUGINS", str(plugin))])
    tables.check()
    row = tables["all_reduce"].algorithm("lsa_ll_twoshot")
    assert row.source == str(tmp_path / "lsa_ll_twoshot.cu")
    kernel = compile_kernel(row.source, expression(row.name, 2, "float32", "sum"), "sm_90")
    assert "lsa_ll_twoshot" in kernel.symbol
    assert kernel.spill_bytes == 0


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that compiles in no time, and a cache of its own."""
    monkeypatch.setenv(env.CACHE_DIR.name, str(tmp_path / "cache"))
    path = tmp_path / "tiny.cc"
    path.write_text("int commlib_test_tiny = 1;\n")
    load_plugin.cache_clear()
    return path


def test_a_compiled_plugin_is_kept_by_its_contents_and_a_damaged_one_is_made_again(tiny: Path) -> None:
    load_plugin(tiny)
    (first,) = (tiny.parent / "cache").glob("*.so")
    whole, made = first.read_bytes(), first.stat().st_mtime_ns
    load_plugin.cache_clear()
    load_plugin(tiny)
    assert first.stat().st_mtime_ns == made
    first.write_bytes(whole[:-100])
    load_plugin.cache_clear()
    load_plugin(tiny)
    assert len(first.read_bytes()) > len(whole) - 100
    tiny.write_text("int commlib_test_tiny = 2;\n")
    load_plugin.cache_clear()
    load_plugin(tiny)
    assert len(list((tiny.parent / "cache").glob("*.so"))) == 2


def test_what_is_loaded_is_in_memory_where_nobody_can_change_it(tiny: Path) -> None:
    load_plugin(tiny)
    loaded = [line for line in Path("/proc/self/maps").read_text().splitlines() if "tiny.so" in line]
    assert loaded
    assert all("/memfd:tiny.so" in line for line in loaded)


@pytest.mark.parametrize(
    ("program", "why"), [("no-such-compiler", "there is no .* on PATH"), ("false", "exit status 1")]
)
def test_without_a_compiler_the_remedy_is_said(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, program: str, why: str
) -> None:
    monkeypatch.setenv("CXX", program)
    plugin_code.compiler.cache_clear()
    with pytest.raises(BuildFailed, match=rf"{why}.*install g\+\+, or name one in CXX"):
        load_plugin(tiny)
    plugin_code.compiler.cache_clear()
