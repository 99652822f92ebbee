"""`commlib.epilogue`: what is done to each row of an all-reduce, in a few lines of CUDA of the user's."""

from __future__ import annotations

import inspect
import json
import keyword
import re
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from commlib.build.device_code import ELEMENTS, compile_kernel, row_expression
from commlib.collectives.all_reduce_rms_norm import ALL_REDUCE_RMS_NORM, GROUP
from commlib.compile import operators
from commlib.core.dispatch import Dispatching
from commlib.errors import one_of
from commlib.native import library
from commlib.redops import DTYPES

KINDS = ("row", "columns", "number", "groups")  # by their codes in csrc/collectives/all_reduce_epilogue/entry.cc
INPUTS, OUTPUTS = KINDS[:3], (KINDS[0], *KINDS[2:])
MAX_FIELDS = 8  # tensors, and numbers: csrc/include/commlib/rows.h
TYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.int8)
FUNCTIONS = "abs has load map max max_of_groups min round set set_groups store sum sum_and_max sum_of_groups".split()
KEYWORDS = (
    "auto bool case catch char const default delete do double enum explicit export extern float friend goto inline int "
    "long mutable namespace new operator private protected public register short signed sizeof static struct switch "
    "template this throw typedef typename union unsigned using virtual void volatile"
).split()  # of C++, and not of Python
RESERVED = frozenset([*FUNCTIONS, *KEYWORDS, "x", "width", "block", "Block", "Row", "T", "comm", "max_sms"])

Kinds = Mapping[str, str]
Results = Mapping[str, tuple[str, torch.dtype | None]]
Tensors = tuple[Tensor | None, ...]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class Epilogue:
    """Declare what is done to each row of a sum over all ranks; call what is returned: `scaled(comm, x, …)`.

    On GPUs of one host the source becomes part of the kernel that adds up the rows. It is compiled at the first call
    with such types, and cached; the plan chooses as for all_reduce_rms_norm. Elsewhere `all_reduce` and the reference
    run.

    Args:
        source: Statements of CUDA on a row in registers, as csrc/device/row.cuh has them. They have the row `x`, the
            type `Row`, the float `width`, and every input, output and number by its name.
        outputs: What is written, by name: ("row", a type), ("number", a type) for one of each row, or ("groups", a
            type) for one of each 128 columns. None is the type of x.
        reference: The same in torch's operations on whole tensors. It takes the sum, rounded to its type, the
            inputs and the numbers by their names, and returns the outputs in their order; they are then rounded.
        inputs: What is read, by name: "row" is a tensor like x, "columns" has one element for each column, "number" has
            one for each row, or one for all. Their types are those of the tensors at the call.
        numbers: The names of floats.
        name: A name for errors, an identifier.

    Returns:
        A function of a communicator, x, and by name the inputs and numbers; by name also tensors for outputs, and
        `max_sms` as of every collective. It returns the output, or a tuple of them.

    Example:
        >>> half = commlib.epilogue(
        ...     "store(out, x * 0.5f);", outputs={"out": ("row", None)}, reference=lambda x: x * 0.5
        ... )
        >>> half(comm, torch.ones(8))  # on two ranks
        tensor([1., 1., 1., 1., 1., 1., 1., 1.])
    """

    def __init__(
        self,
        source: str,
        *,
        outputs: Results,
        reference: Callable[..., Tensor | tuple[Tensor, ...]],
        inputs: Kinds | None = None,
        numbers: Sequence[str] = (),
        name: str = "epilogue",
    ) -> None:
        if isinstance(numbers, str):
            raise TypeError(f"numbers is {numbers!r}, but must be names, as ({numbers!r},)")
        if not callable(reference):
            raise TypeError(f"reference is of type {type(reference).__name__}, but must be a function")
        self.name, self.reference, self._source = name, reference, inspect.cleandoc(source)
        self._inputs, self._outputs, self._numbers = dict(inputs or {}), dict(outputs), tuple(numbers)
        self._check()
        written = [(output, str(kind)) for output, kind in self._outputs.items()]
        content = self._source, list(self._inputs.items()), written, self._numbers
        digest = sha256(json.dumps(content).encode()).digest()[:8]  # what ranks must agree on
        self.symbol = f"{name}_{digest.hex()}"  # the name of its struct in device code: another one for each epilogue
        self.text = self._code()
        self._taken = (*self._inputs, *self._numbers)
        names = (*self._inputs, *self._outputs, *self._numbers)
        self._read, self._written = len(self._inputs), len(self._inputs) + len(self._outputs)
        self._no_outputs = dict.fromkeys(self._outputs)
        self._in_order: Callable[[dict[str, Any]], tuple[Any, ...]] = (
            itemgetter(*names) if len(names) > 1 else lambda arguments: (arguments[names[0]],)
        )
        kinds = [*self._inputs.values(), *(kind for kind, _ in self._outputs.values())]
        dtypes = [DTYPES.index(_name(dtype)) if dtype else -1 for _, dtype in self._outputs.values()]
        self._native = library.open_epilogue(
            self.name,
            ", ".join((*self._inputs, *self._outputs)),
            [KINDS.index(kind) for kind in kinds],
            [-1] * len(self._inputs) + dtypes,
            len(self._inputs),
            ", ".join(self._numbers),
            int.from_bytes(digest, "big", signed=True),
            self.symbol,
            self.text,
        )
        self._operator = self._define()

    def __call__(self, comm: Dispatching, x: Tensor, /, *, max_sms: int = 0, **arguments: Any) -> Any:
        """Add up all ranks' `x` and do this to each row, on so many multiprocessors at most; 0: no limit."""
        if torch.compiler.is_dynamo_compiling():
            return self._traced(comm, x, arguments, max_sms)
        by_name = {**self._no_outputs, **arguments}
        try:
            values = self._in_order(by_name)
        except KeyError:
            values = ()
        if len(by_name) != len(values) or not hasattr(comm, "graph_name"):
            self._refuse(comm, by_name)
        inputs, outs, numbers = values[: self._read], values[self._read : self._written], values[self._written :]
        sums = None if comm.backend == "nccl" else self._copied(x)
        outs = self._outs(x, outs)
        call = self._native, x, (*inputs, *outs), numbers, sums
        if max_sms or comm.dispatcher.detour:
            comm.dispatcher.call("all_reduce_epilogue", call, None, False, max_sms)
        else:
            comm.dispatcher.calls.all_reduce_epilogue(*call)
        if sums is not None:
            self._run_reference(sums, (*inputs, *numbers), outs)
        return outs[0] if len(outs) == 1 else outs

    def check(self, dtype: torch.dtype = torch.bfloat16, arch: str = "sm_90", **types: torch.dtype) -> None:
        """Compile it, also where there is no GPU: so a test finds a mistake before a call does.

        Args:
            dtype: The type of x, and of inputs that are not in `types`.
            arch: The kind of GPU.
            types: The types of inputs, by name.

        Raises:
            BuildFailed: With the line of the source, and what the compiler says; or there is no compiler.
        """
        names = ",".join(_name(types.get(name, dtype)) for name in self._inputs)
        kernel = ALL_REDUCE_RMS_NORM.algorithm("nccl_composed")
        form = f"world=1 pairs=1 epilogue={self.symbol} types={names}"
        compile_kernel(kernel.source, row_expression(kernel.name, _name(dtype), form), arch, self.text)

    def __repr__(self) -> str:
        return f"<epilogue {self.name}(comm, x, {', '.join(f'{name}=' for name in self._taken)})>"

    def __deepcopy__(self, memo: object) -> Epilogue:
        """It never changes: a copy of a model has the same."""
        return self

    def _refuse(self, comm: object, arguments: dict[str, Any]) -> None:
        if not hasattr(comm, "graph_name"):
            raise TypeError(f"comm of {self.name} is of type {type(comm).__name__}, but must be a commlib.Communicator")
        known = (*self._taken, *self._outputs)
        wrong = [f"needs {name}=" for name in self._taken if name not in arguments]
        wrong += [f"knows no {name}=" for name in arguments if name not in known]
        raise TypeError(f"{self.name} {wrong[0]}; it takes {', '.join(f'{name}=' for name in known)}")

    def _outs(self, x: Tensor, outs: Tensors) -> tuple[Tensor, ...]:
        """Return where the outputs go: new tensors for those that the caller left out."""
        complete = [out for out in outs if out is not None]
        if len(complete) == len(outs):
            return tuple(complete)
        library.check_tensor(x, "x", self.name)
        pairs = zip(outs, self._outputs.values(), strict=True)
        return tuple(_like(x, kind, dtype) if out is None else out for out, (kind, dtype) in pairs)

    def _copied(self, x: Tensor) -> Tensor:
        library.check_tensor(x, "x", self.name)
        return x.detach().clone(memory_format=torch.contiguous_format)

    @torch.no_grad()
    def _run_reference(self, sums: Tensor, values: Sequence[Any], outs: tuple[Tensor, ...]) -> None:
        results = self.reference(sums, **dict(zip(self._taken, values, strict=True)))
        results = results if isinstance(results, tuple) else (results,)
        shapes = [tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__ for result in results]
        wanted = [tuple(out.shape) for out in outs]
        if shapes != wanted:
            raise ValueError(f"the reference of {self.name} returned {shapes}, but its outputs have shapes {wanted}")
        for out, result in zip(outs, results, strict=True):
            out.copy_(_narrowed(result, out.dtype))

    def _check(self) -> None:
        names = (*self._inputs, *self._outputs, *self._numbers)
        for name in (self.name, *names):
            if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII) or keyword.iskeyword(name):
                raise ValueError(f"{name!r} is no name that Python and CUDA can use")
        for at, name in enumerate(names):
            if name in RESERVED or name in names[:at]:
                raise ValueError(f"{self.name}: {name!r} means something else already; use another name")
        for name, kind in self._inputs.items():
            one_of(f"{self.name}: {name!r}", kind, INPUTS)
        for name, output in self._outputs.items():
            self._check_output(name, output)
        if not self._outputs or len(self._inputs) + len(self._outputs) > MAX_FIELDS or len(self._numbers) > MAX_FIELDS:
            raise ValueError(
                f"{self.name} needs an output, and may have {MAX_FIELDS} tensors in all and {MAX_FIELDS} numbers"
            )

    def _check_output(self, name: str, output: tuple[str, torch.dtype | None]) -> None:
        if not isinstance(output, tuple) or len(output) != 2:
            raise TypeError(f"{self.name}: output {name!r} is {output!r}, but must be (a kind, a type or None)")
        kind, dtype = output
        one_of(f"{self.name}: {name!r}", kind, OUTPUTS)
        if dtype is not None and dtype not in TYPES:
            *others, last = map(_name, TYPES)
            raise ValueError(
                f"{self.name}: output {name!r} is of {dtype}, but must be None or {', '.join(others)} or {last}"
            )
        if not re.search(rf"\b{name}\b", self._source):
            raise ValueError(f"{self.name}: the source does not write output {name!r}")

    def _code(self) -> str:
        """Return the struct of csrc/device/row.cuh, whose middle is the user's."""
        types = ", ".join(f"class E{i}" for i in range(len(self._inputs))) or "class..."
        lines = ["namespace commlib {", f"template <{types}>", f"struct {self.symbol} {{", "template <class Block>"]
        lines += ["static __device__ __forceinline__ void run(Block& block) {"]
        lines += ["using T = typename Block::Element;", "using Row = typename Block::Row;"]
        fields = [("value" if kind == "number" else "input", f"E{i}") for i, kind in enumerate(self._inputs.values())]
        fields += [("output", ELEMENTS[_name(dtype)] if dtype else "T") for _, dtype in self._outputs.values()]
        bindings = {
            name: f"block.template {kind}<{element}>({at})"
            for at, (name, (kind, element)) in enumerate(zip((*self._inputs, *self._outputs), fields, strict=True))
        }
        bindings |= {name: f"block.number({at})" for at, name in enumerate(self._numbers)}
        bindings |= {"width": "block.width()", "x": "block.take()"}  # the last one waits for the peers
        lines += [f"[[maybe_unused]] const auto {name} = {bound};" for name, bound in bindings.items()]
        lines += ["{", f'#line 1 "epilogue {self.name}"', self._source, f'#line 1 "behind epilogue {self.name}"']
        return "\n".join([*lines, "}", "}", "};", "}", ""])

    # --- in torch.compile: an operator that returns new tensors

    def _define(self) -> Any:
        tensors = [f"Tensor? {name}" for name in self._inputs]
        schema = ", ".join(["Tensor x", *tensors, *(f"float {name}" for name in self._numbers)])
        schema += ", int max_sms, str comm"
        results = ", ".join(["Tensor"] * len(self._outputs))

        def run(*arguments: Any) -> Any:
            *tensors_and_numbers, max_sms, comm = arguments
            x, *values = operators.contiguous(*tensors_and_numbers)
            return self(operators.communicator(comm), x, max_sms=max_sms, **dict(zip(self._taken, values, strict=True)))

        def fake(x: Tensor, *arguments: Any) -> Any:
            outs = tuple(_like(x, kind, dtype) for kind, dtype in self._outputs.values())
            return outs[0] if len(outs) == 1 else outs

        return operators.define(f"epilogue_{self.symbol}", f"({schema}) -> ({results})", run, fake)

    def _traced(self, comm: Dispatching, x: Tensor, arguments: dict[str, Any], max_sms: int) -> Any:
        if arguments.keys() - self._no_outputs.keys() != set(self._taken) or not hasattr(comm, "graph_name"):
            self._refuse(comm, arguments)
        results = self._operator(x, *[arguments[name] for name in self._taken], max_sms, comm.graph_name)
        if len(self._no_outputs) == 1:
            results = (results,)
        places = [arguments.get(name) for name in self._no_outputs]
        outs = [result if out is None else out.copy_(result) for out, result in zip(places, results, strict=True)]
        return outs[0] if len(outs) == 1 else tuple(outs)


epilogue = Epilogue  # its public name


def _like(x: Tensor, kind: str, dtype: torch.dtype | None) -> Tensor:
    if kind == "row":
        return torch.empty_like(x, dtype=dtype, memory_format=torch.contiguous_format)
    last = (1 if kind == "number" else width // GROUP for width in x.shape[-1:])
    return x.new_empty((*x.shape[:-1], *last), dtype=dtype)


def _narrowed(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Round as device code does: what is too large for 8 bits becomes the largest, and NaN as int8 0."""
    if x.dtype == dtype or dtype.itemsize > 1:
        return x
    if dtype == torch.int8:
        return x.nan_to_num(0.0).round().clamp(-128, 127)
    limit = torch.finfo(dtype).max
    return x.clamp(-limit, limit)
