"""Write commlib/_native.pyi from what the native library says of its functions: `stub.py LIBRARY FILE`, in each build.

So editors and type checkers know the native calls, and "go to definition" shows where in csrc each of them stands.
"""

import sys
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

HEAD = '''\
"""The typed face of the native library: each function and method, and where in csrc it stands.

Written by csrc/binding/stub.py in each build. Arguments are positional.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from torch import Tensor
from torch.nn import Parameter

from commlib.radix.cache import Insert, InsertMatch, Match

Integers: TypeAlias = Any
"""One-dimensional int32 or int64: a torch tensor on the CPU, or anything with a buffer (numpy, array, memoryview)."""

RedOp: TypeAlias = Any
"""A reduction's name, or a torch.distributed.ReduceOp."""
'''


def stub(library: object) -> str:
    """Return the text of the stub: classes with their methods, and functions, in the order of the library."""
    parts = [HEAD]
    for name, value in vars(library).items():
        if isinstance(value, type):
            methods = [(key, method) for key, method in vars(value).items() if not key.startswith("__")]
            lines = [_function(key, method, inside=name) for key, method in methods]
            parts.append(f"class {name}:\n" + ("\n".join(lines) or "    pass\n"))
        elif callable(value) and not name.startswith("__"):
            parts.append(_function(name, value))
    return "\n".join(parts)


def _function(name: str, function: object, inside: str = "") -> str:
    signature, place = str(function.__doc__).split("\n\n")
    arguments, _, result = signature.removeprefix("(").rpartition(") -> ")
    if inside == "Calls":  # the only argument that may be left out
        arguments = arguments.replace("max_sms: int", "max_sms: int = 0")
    indent = "    " if inside else ""
    taken = ", ".join(["self"] * bool(inside) + [arguments] * bool(arguments) + ["/"] * bool(arguments))
    return f'{indent}def {name}({taken}) -> {result}:\n{indent}    """{place}"""\n'


def main() -> None:
    """Load the library, which needs neither torch nor a GPU for that, and write the file if it is not as it should."""
    path, target = sys.argv[1], Path(sys.argv[2])
    loader = ExtensionFileLoader("commlib._native", path)
    library = module_from_spec(spec_from_loader(loader.name, loader))
    loader.exec_module(library)
    text = stub(library)
    if not target.exists() or target.read_text(encoding="utf-8") != text:
        target.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
