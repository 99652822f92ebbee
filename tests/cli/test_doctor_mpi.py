"""`commlib doctor` and MPI: missing, mismatched, broken; an mpirun and an mpi4py of ours play the others."""

import importlib.util
import sys

import pytest

from commlib.cli.doctor import mpi

MPICH, OPEN_MPI = "MPICH Version:      5.0.2", "Open MPI v5.0.11, package: Open MPI"
HYDRA, OPEN_RUN = "HYDRA build details:\n    Version: 5.0.2", "mpirun (Open MPI) 5.0.11"
SEEN = "Hello, World! I am process 0 of 2 on here.\nHello, World! I am process 1 of 2 on here."


@pytest.fixture
def box(monkeypatch, tmp_path):
    """Return what puts an mpi4py that loads `library`, and an mpirun of a version that prints `says`, in place."""

    def make(library=MPICH, version=HYDRA, says=SEEN, code=0):
        fake = tmp_path / "site" / "mpi4py"
        fake.mkdir(parents=True)
        (fake / "__init__.py").touch()
        loads = f"def Get_library_version(): return {library!r}\n"
        (fake / "MPI.py").write_text(loads if library else "raise RuntimeError('cannot load MPI library\\nlibmpi.so')")
        if version is not None:
            script = f'#!/bin/sh\n[ "$1" = --version ] && echo "{version}" && exit 0\necho "{says}"\nexit {code}\n'
            put(tmp_path / "mpirun", script)
        put(tmp_path / "python", f'#!/bin/sh\nPYTHONPATH={tmp_path}/site exec {sys.executable} "$@"\n')
        monkeypatch.setattr(mpi.sys, "executable", str(tmp_path / "python"))
        monkeypatch.setenv("PATH", "/usr/bin-without-mpi:/bin-without-mpi")
        monkeypatch.setattr(mpi.importlib.util, "find_spec", lambda name: object())
        return mpi.launcher_and_library()

    def put(path, text):
        path.write_text(text.replace("#!/bin/sh", "#!/bin/sh\nPATH=/usr/bin:/bin"))
        path.chmod(0o755)

    return make


def test_a_launcher_of_the_library_whose_ranks_see_each_other_is_ok(box):
    found = box()
    assert (found.state, found.detail.split(" (")[0]) == ("ok", "MPICH")


def test_open_mpi_is_known_by_its_names(box):
    assert box(OPEN_MPI, OPEN_RUN).detail.startswith("Open MPI (")


def test_a_missing_mpirun_says_what_to_install_and_who_needs_it(box):
    found = box(version=None)
    assert found.state == "missing"
    assert found.detail.startswith("no mpirun on PATH; needed only to start ranks through MPI")
    assert found.remedy == "pip install mpi4py mpich"


def test_a_missing_mpi4py_is_named_too(monkeypatch, tmp_path):
    monkeypatch.setattr(mpi.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert mpi.launcher_and_library().detail.startswith("no mpi4py and no mpirun on PATH")


def test_a_launcher_of_another_mpi_is_mismatched(box):
    found = box(MPICH, OPEN_RUN)
    assert found.state == "broken"
    assert "mismatched: mpirun is Open MPI's" in found.detail
    assert found.detail.endswith("mpi4py loads MPICH 5.0.2")
    assert "put the mpirun of MPICH first on PATH" in found.remedy


def test_an_mpi4py_without_a_library_is_broken(box):
    found = box(library="")
    assert found.state == "broken"
    assert "cannot load an MPI library" in found.detail
    assert "libmpi.so" in found.detail


@pytest.mark.parametrize(("says", "code", "said"), [
    ("there are not enough slots", 16, "cannot start 2 ranks: there are not enough slots"),
    ("TERMINATED WITH THE EXIT STRING: Bus error\nsee the FAQ", 7, "2 ranks: TERMINATED WITH THE EXIT STRING: Bus"),
    ("Hello, World! I am process 0 of 1.", 0, "started 2 ranks that do not see each other"),
])  # fmt: skip
def test_a_launcher_that_starts_no_ranks_or_strangers_is_broken(box, says, code, said):
    found = box(says=says, code=code)
    assert (found.state, said in found.detail) == ("broken", True)
    assert found.remedy == "use the mpirun of the MPI that mpi4py loads"


def test_a_launcher_that_hangs_is_broken(box, monkeypatch):
    monkeypatch.setattr(mpi, "TRIAL_S", 1.5)  # for the library, which answers at once
    found = box(says="$(sleep 30)")
    assert (found.state, "no answer within 1.5 s" in found.detail) == ("broken", True)
