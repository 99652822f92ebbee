"""The design's rules about where things stand; `make lint` runs this file alone."""

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

from commlib.collectives import COLLECTIVES

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = sorted((ROOT / "commlib").rglob("*.py"))
NATIVE = sorted(
    path
    for folder in ("csrc", "tests/native")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in {".h", ".cc", ".cu", ".cuh"}
)


def name_of(path):
    return path.relative_to(ROOT).as_posix()


@cache
def tree_of(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def is_private(name):
    return name.startswith("_") and not name.endswith("__")


def outside_functions(nodes):
    for node in nodes:
        yield node
        if not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Lambda):
            yield from outside_functions(ast.iter_child_nodes(node))


@cache
def names_of(module):
    """Return what can be imported from a module of ours: its names, and the modules of its folder."""
    file = ROOT / f"{module.replace('.', '/')}.py"
    folder = file.with_suffix("")
    file = file if file.is_file() else folder / "__init__.py"
    nodes = list(outside_functions([tree_of(file)])) if file.is_file() else []
    names = {path.stem for path in folder.glob("*")}
    names |= {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    names |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    imports = [alias for node in nodes if isinstance(node, ast.Import | ast.ImportFrom) for alias in node.names]
    return names | {alias.asname or alias.name for alias in imports}


def test_what_tests_and_programs_import_is_there():
    """They include those that only GPUs run."""
    strays = [
        f"{name_of(path)}: {alias.name} of {node.module}"
        for folder in ("tests", "benchmarks", "examples", "docs")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("commlib.", "tests."))
        if node.module != "commlib._native"
        for alias in node.names
        if alias.name not in names_of(node.module)
    ]
    assert not strays, "\n".join(strays)


def test_a_private_name_is_used_in_its_file_only():
    # What others call private is seldom a name of ours, too: these of torch and of named tuples are.
    theirs = {"_end_coalescing", "_fields", "_fields_", "_get_backend", "_replace", "_start_coalescing"}
    theirs |= {"_timeout", "_world"}
    used, ours = [], {}
    for path in PACKAGE:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                ours.setdefault(node.name, set()).add(path)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                ours.setdefault(node.id, set()).add(path)
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
                if isinstance(node.ctx, ast.Store):
                    ours.setdefault(node.attr, set()).add(path)
            elif isinstance(node, ast.Attribute):
                used.append((path, node.lineno, node.attr))
            elif isinstance(node, ast.ImportFrom) and node.module.startswith("commlib."):
                used += [(path, node.lineno, alias.name) for alias in node.names]
    strays = [
        f"{name_of(path)}:{line}: {name}"
        for path, line, name in used
        if is_private(name) and name not in theirs and name in ours and path not in ours[name]
    ]
    assert not strays, "give it a public name, or move the code to it"


def lines_of(path):
    return len(path.read_text(encoding="utf-8").splitlines())


def test_a_file_stays_within_its_budget():
    files = [*PACKAGE, *NATIVE, *(ROOT / "tests").rglob("*.py")]
    long = [name_of(path) for path in files if lines_of(path) > 400]
    assert long == ["commlib/communicator.py"], "look for the seam; this one has every public call"


def test_lines_of_python_stay_within_their_budgets():
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    budgets = dict(re.findall(r"^lines_of_(\w+) = (\d+)", project, re.MULTILINE))
    package, tools, tests = (set((ROOT / name).rglob("*.py")) for name in ("commlib", "commlib/tools", "tests"))
    parts = {"runtime": package - tools, "tools": tools, "tests": tests}
    over = [name for name, files in parts.items() if sum(map(lines_of, files)) > int(budgets[name])]
    assert over == [], "cut before you add: [tool.commlib.budgets]"


def test_native_code_is_told_and_does_not_read_the_environment():
    readers = [name_of(path) for path in NATIVE if "getenv" in path.read_text(encoding="utf-8")]
    assert not readers, "pass the value from Python, where env.py has it"


def test_native_files_and_the_tables_name_each_other():
    named = set()
    for name, collective in COLLECTIVES.items():
        for algorithm in (each for each in collective.algorithms if each.run is None):
            homes = files_of(name, algorithm)
            assert any(path.exists() for path in homes), f"{name}: {algorithm.name} needs one of {homes}"
            named.update(homes)
    there = [path for path in (ROOT / "csrc/collectives").rglob("*") if path.suffix in {".cc", ".cu"}]
    strays = [name_of(path) for path in there if path not in named and path.name != "entry.cc"]
    assert not strays, "no table of commlib/collectives names these"


def files_of(collective, algorithm):
    # Device code serves several collectives where they do the same; its row names the folder.
    if algorithm.kernel:
        return [ROOT / "csrc" / algorithm.source]
    stems = {collective, collective.removesuffix("v")}  # all_gatherv lives in csrc/collectives/all_gather/
    return [ROOT / "csrc/collectives" / stem / f"{algorithm.name}.cc" for stem in stems]


def test_the_generated_pages_are_current():
    check = [sys.executable, str(ROOT / "docs/generate.py"), "--check"]  # by itself: click keeps help texts
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def sources():
    folders = ("commlib", "csrc", "tests", "docs", "launch", "benchmarks", "examples", ".ci")
    kinds = {"", ".cc", ".cu", ".cuh", ".h", ".json", ".md", ".py", ".sbatch", ".sh", ".toml", ".txt", ".yaml"}
    found = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in kinds]
    found += [path for path in ROOT.iterdir() if path.suffix in kinds and path.name != ".git"]  # a file in a worktree
    return [path for path in found if path.is_file()]


def test_nobody_is_sent_to_the_project_that_has_our_import_s_name_on_the_index():
    pattern = re.compile(r"pip3? install\b[^`#\n]*[\s'\"]commlib(?![-\w./])|['\"]commlib\\?\[")
    texts = [path for path in sources() if path.name != "test_layout.py"]
    hits = [name_of(path) for path in texts if pattern.search(path.read_text(encoding="utf-8", errors="replace"))]
    assert not hits, "`commlib` there is a stranger's: name the distribution commlib-collectives, or the real packages"
    assert all(map(pattern.search, ("pip install commlib", 'pip install "commlib[gpu]"', "pip install -U commlib==1")))


def test_a_remedy_names_the_packages_of_its_extra():
    files = {"gpu": "backends/nccl_control.py", "mpi": "bootstrap/mpi.py", "plot": "tools/report/chart.py"}
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for extra, file in [*files.items(), ("tp", "tp/weights.py")]:
        (packages,) = re.findall(rf"^{extra} = \[(.*)\]", project, re.MULTILINE)
        remedies = re.findall(r"pip install .*", (ROOT / "commlib" / file).read_text(encoding="utf-8"))
        assert remedies
        for name in re.findall(r'"([\w-]+)', packages):
            assert all(name in remedy for remedy in remedies), (extra, name)


def test_no_path_of_a_machine_is_in_the_project():
    # Folders of one person or machine; written so that this line does not match itself.
    pattern = re.compile(r"(?<![\w.<])/(?:work|root|home/\w+|Users/\w+|mnt|opt/\w+)/[\w.]")
    hits = [
        f"{name_of(path)}:{number}: {line.strip()[:80]}"
        for path in sources()
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if pattern.search(line)
    ]
    assert not hits, "\n".join(hits)
