"""What a newcomer, a forge and a package index read: workflows, forms, images and policies name what exists."""

import re

import pytest
import yaml

from tests import pages
from tests.pages import POLICIES, ROOT

WORKFLOWS = {path.stem: yaml.safe_load(path.read_text("utf-8")) for path in (ROOT / ".github/workflows").glob("*.yml")}
INSTRUCTIONS = {"ARG", "CMD", "COPY", "ENV", "FROM", "RUN", "USER", "WORKDIR"}


def targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))


def steps_of(workflow: dict) -> list[dict]:
    return [step for job in workflow["jobs"].values() for step in job.get("steps", [])]


def test_a_workflow_calls_what_exists_and_may_only_read() -> None:
    assert set(WORKFLOWS) == {"docs", "release", "tests", "wheels"}
    for name, workflow in WORKFLOWS.items():
        assert workflow["permissions"] == {"contents": "read"}, name
        for line in [line for step in steps_of(workflow) for line in step.get("run", "").splitlines()]:
            program, *words = line.split()
            assert program != "make" or words[0] in targets(), line
            assert program in {"make", "git", "pipx"} or (ROOT / program).is_file(), line
        called = [job["uses"] for job in workflow["jobs"].values() if "uses" in job]
        assert all((ROOT / path).is_file() for path in called), name


def test_every_python_that_is_supported_is_tested() -> None:
    jobs = WORKFLOWS["tests"]["jobs"]
    gate = [
        step["with"]["python-version"] for step in jobs["gate"]["steps"] if "python-version" in step.get("with", {})
    ]
    tested = {*jobs["test"]["strategy"]["matrix"]["python"], *gate}
    assert tested == {f"3.{minor}" for minor in range(10, 15)}
    assert 'requires-python = ">=3.10"' in (ROOT / "pyproject.toml").read_text("utf-8")


def test_only_the_step_that_publishes_gets_an_identity() -> None:
    jobs = WORKFLOWS["release"]["jobs"]
    assert [name for name, job in jobs.items() if "id-token" in job.get("permissions", {})] == ["publish"]
    assert set(jobs["publish"]["needs"]) == jobs.keys() - {"publish"}


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_an_image_is_made_of_what_exists(kind: str) -> None:
    text = re.sub(r"^#.*\n", "", (ROOT / f"docker/Dockerfile.{kind}").read_text("utf-8"), flags=re.MULTILINE)
    lines = [line.split() for line in text.replace("\\\n", " ").splitlines() if line]
    assert {words[0] for words in lines} <= INSTRUCTIONS
    stages = {words[3] for words in lines if words[0] == "FROM" and "AS" in words}
    sources = [words for words in lines if words[0] == "COPY"]
    assert all((ROOT / words[1]).exists() or words[1].removeprefix("--from=") in stages for words in sources)
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    assert all(f"\n{extra} = [" in project for extra in re.findall(r"\[(\w+)\]", text))


def test_the_version_is_the_same_wherever_it_stands() -> None:
    places = {
        "commlib/version.py": r'__version__ = "(.*)"',
        "pyproject.toml": r'^version = "(.*?)"',
        "CITATION.cff": r"^version: (.*)",
        "CHANGELOG.md": r"^## (\d\S+) - \d{4}-\d\d-\d\d$",
    }
    found = {re.findall(pattern, (ROOT / path).read_text("utf-8"), re.MULTILINE)[0] for path, pattern in places.items()}
    assert len(found) == 1


def test_policies_name_targets_that_exist() -> None:
    for page in POLICIES:
        assert set(re.findall(r"(?:^|`)make ([a-z-]+)", pages.text_of(page), re.MULTILINE)) <= targets(), page
