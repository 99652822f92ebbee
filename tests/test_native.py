"""commlib._native: functions say what they take, and take Python objects as they are."""

import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from commlib import native
from commlib.collectives.signatures import SIGNATURES
from commlib.errors import BuildFailed, CommError
from commlib.native import library
from commlib.tools.debug.flight import _NAMES

ROOT = Path(__file__).resolve().parent.parent


def functions():
    """Yield (name, documentation) of every function of the library, "Class.method" for a method."""
    for name, value in vars(library).items():
        if isinstance(value, type):
            methods = {key: member for key, member in vars(value).items() if not key.startswith("__")}
            yield from ((f"{name}.{key}", member.__doc__) for key, member in methods.items())
        elif callable(value) and not name.startswith("__"):
            yield name, value.__doc__


FUNCTIONS = dict(functions())


def arguments(start=0, length=-1, policy="zero"):
    return torch.zeros(1, 2), torch.arange(6.0).view(3, 2), torch.tensor([2]), start, length, policy


@pytest.mark.parametrize("number", [1, np.int64(1), True], ids=["int", "numpy", "bool"])
def test_integers_of_every_kind_are_integers(number):
    out, *rest = arguments(start=number, length=2)
    assert library.index(out, *rest) is True
    assert out.tolist() == [[2, 3]]


def test_parameters_and_subclasses_are_tensors():
    class Marked(torch.Tensor):
        pass

    for kind in (torch.nn.Parameter, lambda table: table.as_subclass(Marked)):
        out, table, *rest = arguments()
        library.index(out, kind(table), *rest)
        assert out.tolist() == [[4, 5]]


@pytest.mark.parametrize("wrong", [[0], {}, 1.5j, 1.5, "0", 1 << 70], ids=repr)
def test_other_objects_are_refused_by_the_argument_s_name(wrong):
    out, table, ids, *rest = arguments()
    told = (
        "does not fit 64 bits" if isinstance(wrong, int) else f"is of type {type(wrong).__name__}, but must be an int"
    )
    with pytest.raises((TypeError, ValueError), match=f"start {told}"):
        library.index(out, table, ids, wrong, *rest[1:])
    assert out.tolist() == [[0, 0]]


def test_errors_keep_their_class_and_their_text():
    out, table, ids, *rest = arguments()
    with pytest.raises(ValueError, match=r"weights has 1 dimension, but .* reshape it"):
        library.index(out, table[0], ids, *rest)
    with pytest.raises(TypeError, match=r"index\(out, weights, .*\) takes 6 arguments, but got 17"):
        library.index(*[0] * 17)


@pytest.mark.parametrize("name", ["Calls", "ShmGroup", "NcclGroup", "RadixTree"])
def test_only_the_library_makes_its_objects(name):
    with pytest.raises(TypeError, match="cannot create"):
        getattr(library, name)()


@pytest.mark.parametrize("size", [-1, 2**62])
def test_an_arena_of_no_possible_size_is_refused(size):
    with pytest.raises(ValueError, match="is out of range"):
        library.open_shm(1, 0, size, 1, 0, -1)


@pytest.mark.parametrize("path", ["/missing.so", __file__])
def test_a_library_that_was_named_and_does_not_load_is_named(path, monkeypatch):
    monkeypatch.setenv("COMMLIB_LIBRARY", path)
    with pytest.raises(BuildFailed, match=f"COMMLIB_LIBRARY={path} names it; unset it"):
        native._load()


def test_a_segment_of_another_job_is_refused():
    group = library.open_shm(2, 0, 1 << 20, 7, 0, -1)
    with pytest.raises(CommError, match="belongs to another job"):
        library.open_shm(2, 1, 1 << 20, 8, os.getpid(), group.fd())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a file to another user")
def test_a_segment_of_another_user_is_refused():
    group = library.open_shm(2, 0, 1 << 20, 7, 0, -1)
    library.open_shm(2, 1, 1 << 20, 7, os.getpid(), group.fd())
    os.chown(group.fd(), 1, -1)
    with pytest.raises(CommError, match=r"of user 1, expected .* of user 0"):
        library.open_shm(2, 1, 1 << 20, 7, os.getpid(), group.fd())


def test_the_signatures_are_those_of_the_library():
    calls = {name.partition(".")[2]: text for name, text in FUNCTIONS.items() if name.startswith("Calls.")}
    for name, signature in SIGNATURES.items():
        taken = [argument for argument in re.findall(r"(\w+):", calls[name].split("\n")[0]) if argument != "max_sms"]
        assert [parameter.name for parameter in signature.parameters] == taken, name
        assert signature.root in ("", *taken), name
    assert set(calls) - set(SIGNATURES) == {"keep_versions", "handle"}
    assert set(_NAMES) <= set(SIGNATURES), "calls in a dump of the flight recorder"
