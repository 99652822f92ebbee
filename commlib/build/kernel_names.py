"""Names of kernels in C++: which instance of an algorithm's kernel serves a call."""

from __future__ import annotations

MAX_WORLD = 8  # kMaxPeers of csrc/include/commlib/job.h

# torch name → element type of a kernel. Complex numbers are added as pairs; native code asks for the
# reduction of bytes that does what a reduction of bools means.
ELEMENTS: dict[str, str] = {
    "float64": "double",
    "float32": "float",
    "float16": "commlib::half",
    "bfloat16": "commlib::bfloat16",
    "float8_e4m3fn": "commlib::e4m3",
    "float8_e5m2": "commlib::e5m2",
    "int8": "signed char",
    "uint8": "unsigned char",
    "int16": "short",
    "uint16": "unsigned short",
    "int32": "int",
    "uint32": "unsigned int",
    "int64": "long long",
    "uint64": "unsigned long long",
    "bool": "unsigned char",
    "complex64": "float",
    "complex128": "double",
}


QUANTS = ("none", "fp8", "fp8_token", "fp8_group")  # by their codes in csrc/device/rms_norm.cuh


def row_expression(algorithm: str, dtype: str, form: str) -> str:
    """Return the instance of a kernel that ends with an epilogue; csrc/nccl/kernels.cc writes the form."""
    fields = dict(field.split("=") for field in form.split())
    if "epilogue" in fields:
        types = ", ".join(ELEMENTS[name] for name in fields["types"].split(",") if name)
        end = f"commlib::{fields['epilogue']}<{types}>"
    else:
        center = "true" if fields["center"] == "yes" else "false"
        end = f"commlib::RmsNorm<{ELEMENTS[fields['weight']]}, {center}, {QUANTS.index(fields['quant'])}>"
    return f"commlib::{algorithm}<{ELEMENTS[dtype]}, {end}, {fields['world']}, {fields['pairs']}>"


def expression(algorithm: str, world: int, dtype: str = "", redop: str = "") -> str:
    """Return the instance of a kernel that serves a call; moves, without type and reduction, have one for all."""
    if not dtype:
        return f"commlib::{algorithm}<{world}>"
    # A sum of bools is another reduction of bytes, so it is chosen at run time.
    op = "Sum" if redop == "sum" and dtype != "bool" else "AnyOp"
    return f"commlib::{algorithm}<{ELEMENTS[dtype]}, commlib::{op}, {world}>"
