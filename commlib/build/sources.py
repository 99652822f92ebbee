"""The native sources that are compiled at run time, and what a file of them is made of."""

from __future__ import annotations

import re
from pathlib import Path

from commlib.errors import BuildFailed

_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*["<]([^">\n]+)[">]', re.MULTILINE)


def csrc() -> Path:
    """Return the folder of the native sources: the checkout's, or else the one installed with the package."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package.parent / "csrc", package / "csrc"):
        if (folder / "include" / "commlib" / "job.h").is_file():
            return folder
    raise BuildFailed(f"the sources of the kernels are not next to {package}; reinstall commlib, or run `make setup`")


def include_folders(root: Path) -> tuple[Path, Path]:
    """Return where the headers of native sources are looked for."""
    return root, root / "include"


def files_of(path: Path, root: Path) -> dict[Path, bytes]:
    """Return the contents of a source and of all headers of ours that it includes."""
    files: dict[Path, bytes] = {}

    def add(file: Path) -> None:
        files[file] = file.read_bytes()
        for name in _INCLUDE.findall(files[file]):
            places = ((folder / name.decode()).resolve() for folder in (file.parent, *include_folders(root)))
            header = next(filter(Path.is_file, places), None)
            if header is not None and header not in files:
                add(header)

    add(path)
    return files
