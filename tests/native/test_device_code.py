"""Every GPU kernel of the tables compiles, for each generation of GPUs, and keeps its values in registers."""

import os
import re
import subprocess
from functools import cache

import pytest

from commlib import env
from commlib.build.device_code import ELEMENTS, Kernel, compile_kernel, row_expression
from commlib.build.sources import csrc, files_of
from commlib.native import library
from commlib.tools.kernel_list import Request, compile_many, kernels
from tests.epilogues import FP8_GROUPS, INT8, QK_NORM, RMS_NORM, SCALED

HERE, *OTHERS = "sm_90", "sm_80", "sm_100"  # what the figures are of, and older and newer GPUs
COMMON = ("float32", "bfloat16")

# All of everything would take half an hour. "max" stands for the reductions that are chosen at run time.
FOR_TWO = kernels([2], ELEMENTS, ["max"]) + kernels([2], COMMON, ["sum"])
FOR_MORE = kernels([4, 8], COMMON, ["sum", "max"])
EVERYWHERE = dict.fromkeys(kernels([2, 8], COMMON, ["sum", "max"]))
# Of the kernels without a communicator: all for one generation, those of common rows for the others.
ALONE = list(library.device_kernels())
COMMON_ROWS = (", 16>", "Copy<16>", "bfloat16, commlib::e4m3, 8>", "<256>")
ALONE_COMMON = [kernel for kernel in ALONE if any(words in kernel[1] for words in COMMON_ROWS)]


TILES = ("lsa_oneshot", "lsa_twoshot")  # whose rows are at most a tile
# lsa_lamport_oneshot but for how a sum crosses blocks, or comes: few of their forms will do.
ALIKE = ("lsa_lamport_cluster", "lsa_lamport_twoshot")


def row_sources(dtype, world):
    """Yield (source, algorithm, ranks, pairs) of kernels of rows, up to the longest rows that each has."""
    for path in sorted((csrc() / "collectives/all_reduce_rms_norm").glob("*.cu")):
        longest = 2 if path.stem in TILES else 8 if dtype == "float32" else 4
        ranks = 1 if path.stem == "nccl_composed" else world
        source = path.relative_to(csrc()).as_posix()
        yield from ((source, path.stem, ranks, pairs) for pairs in (1, 2, 4, 8) if pairs <= longest)


def row_kernels(world, dtypes, norms):
    """(source, expression) of kernels whose rows end with a norm; `norms`: type of the weight, center, quant."""
    found = []
    for dtype in dtypes:
        for source, name, ranks, pairs in row_sources(dtype, world):
            for weight, center, quant in norms:
                norm = f"commlib::RmsNorm<{ELEMENTS[weight or dtype]}, {center}, {quant}>"
                found.append((source, f"commlib::{name}<{ELEMENTS[dtype]}, {norm}, {ranks}, {pairs}>"))
    return found


def epilogue_kernels(world, dtype, epilogues, arch=HERE, most_pairs=8):
    """Requests of kernels whose rows end with an epilogue of the user's, for inputs of these types."""
    return [
        Request(source, row_expression(name, dtype, form), arch, epilogue.text)
        for epilogue, types in epilogues.items()
        for source, name, ranks, pairs in row_sources(dtype, world)
        if pairs <= most_pairs and name not in ALIKE
        for form in [f"world={ranks} pairs={pairs} epilogue={epilogue.symbol} types={types}"]
    ]


PLAIN, WIDEST = ("", "false", 0), ("float32", "true", 3)  # the norm of most models, and what takes most registers
NORMS = [(weight, center, quant) for weight in ("", "float32") for center in ("false", "true") for quant in range(4)]
ROWS_FOR_TWO = row_kernels(2, COMMON, [PLAIN, WIDEST]) + row_kernels(2, ["float16"], [PLAIN])
NOT_ALIKE = [row for row in row_kernels(2, ["bfloat16"], NORMS) if not any(name in row[1] for name in ALIKE)]
ROWS_FOR_TWO += [row for row in NOT_ALIKE if row[1].endswith("2>")]
ROWS_FOR_MORE = [row for world in (3, 4) for row in row_kernels(world, ["bfloat16"], [WIDEST])]
ROWS_FOR_MORE += row_kernels(8, COMMON, [PLAIN, WIDEST])
HALF_ON_EIGHT = [row for row in row_kernels(8, ["float16"], NORMS) if "lsa_twoshot" in row[1] and row[1].endswith("2>")]
ROWS_FOR_MORE += HALF_ON_EIGHT
# What the gate compiles: one of each algorithm of all_reduce, of one its marks, and of rows; and what has changed.
OF_ALL_REDUCE = [each for each in dict.fromkeys(kernels([2], ["bfloat16"], ["sum"])) if "/all_reduce/" in each[0]]
SOON = [Request(*kernel, HERE) for kernel in OF_ALL_REDUCE]
SOON += [request._replace(marked=True) for request in SOON[:1]]
SOON += [Request(*kernel, HERE) for kernel in row_kernels(2, ["bfloat16"], [PLAIN]) if kernel[1].endswith("2>")]
SOON += [Request(*kernel, HERE) for kernel in ALONE_COMMON[::8]]
MARKED = [Request(*kernel, HERE, marked=True) for kernel in kernels([2], ["bfloat16"], ["sum"])]
REST = [Request(*kernel, HERE) for kernel in row_kernels(2, COMMON, [PLAIN])]
REST += [Request(*kernel, HERE) for kernel in dict.fromkeys(FOR_TWO + FOR_MORE + ALONE)]
REST += [Request(*kernel, HERE) for kernel in dict.fromkeys(ROWS_FOR_TWO + ROWS_FOR_MORE)]
REST += MARKED + [Request(*kernel, HERE, marked=True) for kernel in kernels([8], ["bfloat16"], ["sum"])]
REST += [Request(*kernel, arch) for arch in OTHERS for kernel in [*EVERYWHERE, *ALONE_COMMON]]
REST += [Request(*kernel, arch) for arch in OTHERS for kernel in row_kernels(2, ["bfloat16"], [WIDEST])]
# An input of 8 bits, one that differs from x, and those of most models.
SHOWN = {SCALED: "bfloat16,float32,float32", QK_NORM: "bfloat16,bfloat16", INT8: ""}
OF_USERS = {SCALED: "float8_e4m3fn,float32,float16", QK_NORM: "int8,float32", INT8: ""}
OF_USERS |= {RMS_NORM: "bfloat16,bfloat16", FP8_GROUPS: "bfloat16,bfloat16"}
REST += [
    *epilogue_kernels(2, "bfloat16", SHOWN | OF_USERS),
    *epilogue_kernels(4, "bfloat16", OF_USERS),
    *epilogue_kernels(2, "float32", OF_USERS),
    *(request for arch in OTHERS for request in epilogue_kernels(2, "bfloat16", SHOWN, arch)),
]
# Known to spill: a mend has to take them off this list.
SPILLING = {
    request
    for world in (2, 4)
    for request in epilogue_kernels(world, "bfloat16", {SCALED: OF_USERS[SCALED]})
    if "lsa_lamport_oneshot" in request.source and request.expression.endswith(", 4>")
}


def changed_since(commit):
    """Return a function that says of a request whether a file that it is made of has changed since."""
    if not commit:
        return lambda request: False
    command = ["git", "-C", str(csrc()), "diff", "--relative", "--name-only", commit, "--", "."]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    changed = {(csrc() / name).resolve() for name in told.splitlines()}

    @cache
    def has_changed(source):
        return not changed.isdisjoint(file.resolve() for file in files_of(csrc() / source, csrc()))

    return lambda request: request.arch == HERE and has_changed(request.source)


def pytest_generate_tests(metafunc):
    if "kernel" in metafunc.fixturenames:
        changed = changed_since(metafunc.config.getoption("base"))
        metafunc.parametrize("kernel", [marked(r, changed) for r in dict.fromkeys(SOON + REST)], ids=name_of)


def marked(request, changed):
    late = [] if request in SOON or changed(request) else [pytest.mark.slow]
    spills = [pytest.mark.xfail(strict=True, reason="spills registers")] if request in SPILLING else []
    return pytest.param(request, marks=[*late, *spills])


pytestmark = pytest.mark.timeout(5400)  # of the first test, in which all are compiled


def name_of(request):
    folder, expression = request.source.split("/")[1], request.expression.replace("commlib::", "").replace(" ", "")
    return f"{folder}/{expression}-{request.arch}{'-marked' * request.marked}"


@pytest.fixture(scope="module")
def compiled(request):
    pytest.importorskip("cuda.bindings.nvrtc")
    items = [item for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    wanted = [item.callspec.params["kernel"] for item in items]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(env.CACHE_DIR.name, str(request.config.cache.mkdir("kernels")))
        return dict(compile_many(wanted, len(os.sched_getaffinity(0))))


def stays_in_registers(result):
    assert isinstance(result, Kernel), str(result)
    assert "warning" not in result.log, result.log
    assert (result.spill_bytes, result.stack_bytes) == (0, 0), f"{result.registers} registers\n{result.log}"


def test_a_kernel_compiles_and_stays_in_registers(compiled, kernel):
    stays_in_registers(compiled[kernel])


# Slots of shared memory that a block gets at its launch, by the variable that says so (csrc/cuda/module.cc).
SLOTS = {b"commlib_shared_tiles": 6, b"commlib_shared_slots": 13}
SLOT_BYTES, HOPPER_SHARED_BYTES = 16 << 10, 227 << 10


def test_a_free_multiprocessor_has_room_for_a_block_of_every_kernel(compiled):
    """Two communicators rely on it (csrc/nccl/footprint.h); the compiler sees to registers."""
    seen = set()
    for request, kernel in compiled.items():
        if request.arch != HERE or not isinstance(kernel, Kernel):
            continue
        static = re.search(r"(\d+) bytes smem", kernel.log)
        slots = sum(count for name, count in SLOTS.items() if name in kernel.code)
        seen.add(slots)
        assert int(static[1] if static else 0) + slots * SLOT_BYTES <= HOPPER_SHARED_BYTES, request
    assert seen >= {0, *SLOTS.values()}


def test_only_kernels_that_are_compiled_with_marks_have_them(compiled):
    for request in [request for request in SOON if request.marked]:
        assert b"commlib_marks" in compiled[request].code
        assert b"commlib_marks" not in compiled[request._replace(marked=False)].code


def test_the_example_of_an_epilogue_compiles_and_stays_in_registers(tmp_path):
    pytest.importorskip("cuda.bindings.nvrtc")
    lines = (csrc() / "device/row.cuh").read_text().splitlines()
    begin = lines.index("//   struct Scaled {")
    example = [line.removeprefix("//") for line in lines[begin : lines.index("//   };", begin) + 1]]
    source = tmp_path / "scaled.cu"
    head = ['#include "collectives/all_reduce_rms_norm/nccl_composed.cu"', "namespace commlib {"]
    source.write_text("\n".join([*head, *example, "}  // namespace", ""]))
    for pairs in (1, 2, 4):
        expression = f"commlib::nccl_composed<commlib::bfloat16, commlib::Scaled, 1, {pairs}>"
        stays_in_registers(compile_kernel(source, expression, HERE))
