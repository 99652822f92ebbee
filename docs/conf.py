"""The site of these pages: `make docs` has Sphinx write it. The pages stay plain Markdown that a forge shows, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

# Heading → pages, in reading order; a page that is missing here is an error.
CONTENTS = {
    "Start": ("quickstart", "operations", "troubleshooting"),
    "Collectives": ("plans", "tuning", "hosts", "torch_distributed", "from_torch_and_vllm"),
    "Inference": (
        "vllm",
        "sglang",
        "minisgl",
        "tvm_ffi",
        "tensor_parallel",
        "kernels",
        "radix",
        "from_sglang_radix_cache",
    ),
    "Measure": ("report", "benchmarks", "profiling", "from_nccl_tests_and_osu"),
    "Results": (
        "results_h200",
        "results_h100",
        "results_xeon_2_cores",
        "results_xeon_32_cores",
        "results_epyc_2_cores",
    ),
    "Inside": ("architecture", "shm", "gpu", "extending", "../CONTRIBUTING"),
    "Look up": ("cli", "documents", "environment", "../CHANGELOG"),
}

project = html_title = "commlib"
root_doc = "docs/index"
include_patterns = ["docs/*.md", "CONTRIBUTING.md", "CHANGELOG.md"]
exclude_patterns = [".venv", "build"]
extensions = ["myst_parser"]
myst_heading_anchors = 4  # down to ####; they are those of a forge
suppress_warnings = ["misc.highlighting_failure"]  # an example may have … in it

html_theme = "furo"
html_static_path, html_css_files = ["style"], ["site.css"]
html_theme_options = {
    name: {"code-font-size": "var(--font-size--small--3)"}  # 100 columns fit: the help of a command
    for name in ("light_css_variables", "dark_css_variables")
}
html_copy_source = html_show_copyright = html_use_index = False
html_show_search_summary = False  # it fetches the pages found, which a page opened as a file may not


def setup(app: Any) -> None:
    """Add what the pages themselves do not have."""
    app.connect("source-read", _add_contents)
    app.connect("build-finished", _add_door)


def _add_contents(app: Any, page: str, source: list[str]) -> None:
    if page == root_doc:  # a forge would show it as text
        for heading, pages in CONTENTS.items():
            source[0] += "\n".join(["", "```{toctree}", ":hidden:", f":caption: {heading}", "", *pages, "```", ""])


def _add_door(app: Any, error: Exception | None) -> None:
    if error is None:
        door = f'<!doctype html><title>commlib</title><meta http-equiv="refresh" content="0; url={root_doc}.html">\n'
        (Path(app.outdir) / "index.html").write_text(door, encoding="utf-8")
