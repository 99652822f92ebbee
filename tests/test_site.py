"""The site that `make docs` makes of the pages: whole, and readable as files of a machine without a network."""

import re
import subprocess
import sys

import pytest

from tests.pages import ROOT

pytestmark = pytest.mark.slow

pytest.importorskip("sphinx", reason="the site is made with Python 3.11 or newer")


def build(source, site):
    """Make the site as the Makefile does; return the run and what it says."""
    (command,) = re.findall(r"^\t\$\(bin\)/python (-m sphinx .*)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    words = command.replace("build/site-cache", str(site / "cache")).replace("build/site", str(site)).split()
    return subprocess.run([sys.executable, *words], cwd=source, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_is_in_the_site_and_its_search(site):
    pages = {f"docs/{path.stem}" for path in (ROOT / "docs").glob("*.md")} | {"CONTRIBUTING", "CHANGELOG"}
    (found,) = re.findall(r'"docnames":(\[.*?\])', (site / "searchindex.js").read_text(encoding="utf-8"))
    assert set(re.findall(r'"(.*?)"', found)) == pages
    assert [page for page in pages if not (site / f"{page}.html").exists()] == []
    assert "docs/index.html" in (site / "index.html").read_text(encoding="utf-8")


def test_nothing_of_the_site_comes_from_a_network(site):
    away = re.compile(
        r"""<(?:script|img|iframe|source)\b[^>]*\bsrc="(?:https?:)?//|<link\b[^>]*\bhref="(?:https?:)?//"""
        r"""|@import\s+(?:url\()?["']?(?:https?:)?//|\burl\(["']?(?:https?:)?//|\bimportScripts\("""
    )
    read = [path for path in site.rglob("*") if path.suffix in {".html", ".css", ".js"}]
    assert len(read) > 30
    assert [path.name for path in read if away.search(path.read_text(encoding="utf-8"))] == []
    assert away.search('<script async src="https://cdn.example/x.js">'), "the pattern finds what it is for"
