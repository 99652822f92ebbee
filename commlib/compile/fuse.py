"""all_reduce → + residual → RMSNorm in graphs of torch.compile, made one operator.

The pass reads graphs behind AOTAutograd: there every spelling of a norm is the same few operators of aten, and nothing
is written in place. From each `rsqrt` it goes back to the sum that is normalised, and forward to the product with the
weight. It looks only at the graph and the backends of process groups, so all ranks that compile one program fuse the
same calls.
"""

from __future__ import annotations

import logging
import operator
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from commlib.collectives.all_reduce_rms_norm import COLUMNS, TYPES
from commlib.compile import operators

_LOG = logging.getLogger("commlib")
_ATEN: Any = torch.ops.aten
_C10D: Any = torch.ops._c10d_functional
_OURS: Any = operators.OPS
_WITH_EFFECTS: Any = torch.ops.higher_order.with_effects
_MAKE_TOKEN: Any = torch.ops.prims._make_token.default
_VIEWS = (_ATEN.view.default, _ATEN._unsafe_view.default, _ATEN.reshape.default)
_HOOK = "post_grad_custom_pre_pass"
MAX_ROW_BYTES = 1 << 16  # csrc/include/commlib/rows.h


@dataclass(frozen=True)
class _Sum:
    """An all_reduce of a graph: its node, what it sums, and what it becomes."""

    call: Node
    x: Node
    fused: Any
    where: list[Any]  # max_sms and the name of a communicator, or the name of a process group


@dataclass(frozen=True)
class _Norm:
    """An RMSNorm of h: y, and its arguments."""

    h: Node
    y: Node
    weight: Node
    weight_bias: float
    eps: float


def fuse(graph: Graph | GraphModule) -> int:
    """Make each all_reduce, + residual, RMSNorm of a graph one `all_reduce_rms_norm`; return how many there were.

    `torch.compile(model, backend=commlib.inductor)` does this for Inductor. Call it in a torch.compile backend that
    you write, on what AOTAutograd passes to it, or in a pass that you give Inductor as `post_grad_custom_pre_pass`.
    The graph is of aten's operators, and is changed.
    """
    nodes = graph.graph if isinstance(graph, GraphModule) else graph
    calls = sum(map(_is_sum, nodes.nodes))
    fused = sum(any(_fused(nodes, norm) for norm in _norms(node)) for node in list(nodes.nodes))
    if calls:
        _LOG.info("torch.compile: %d of %d all_reduces became one call with the RMSNorm behind", fused, calls)
    if isinstance(graph, GraphModule):
        graph.recompile()
    return fused


def inductor(model: GraphModule, inputs: list[Any], *, mode: str | None = None, options: Any = None) -> Any:
    """Compile with Inductor and `fuse`: `torch.compile(model, backend=commlib.inductor, mode="reduce-overhead")`."""
    from torch._inductor import config

    if (options or {}).get(_HOOK) or getattr(config, _HOOK):
        raise ValueError(
            f"Inductor has a {_HOOK} already; call commlib.fuse(graph) in it, with Inductor as the backend"
        )
    wrapper = torch._TorchCompileInductorWrapper(mode, options, None)
    wrapper.config[_HOOK] = _Pass()
    return wrapper(model, inputs)


def _reset() -> None:
    trees = sys.modules.get("torch._inductor.cudagraph_trees")
    if trees is not None:
        trees.reset_cudagraph_trees()


inductor.reset = _reset  # type: ignore[attr-defined]  # torch._dynamo.reset() asks for it


class _Pass(CustomGraphPass):
    """`fuse` for Inductor, which stores graphs on disk by what names the pass."""

    def __call__(self, graph: Graph) -> None:
        fuse(graph)

    def uuid(self) -> Any:
        """Return what the result depends on in addition to the graph: this code, and the backends of groups."""
        world: Any = dist.distributed_c10d._world if dist.is_available() else None
        configs = {} if world is None else world.pg_backend_config
        groups = sorted((world.pg_names[group], str(config)) for group, config in configs.items())
        return get_hash_for_files((__file__, str(operators.__file__)), str(groups))


# --- what a graph contains --------------------------------------------------------------------------------------------


def _norms(node: Node) -> Iterator[_Norm]:
    """Find the norms that are made of 1 / sqrt(mean(h²) + eps); on GPUs, without decompositions, torch's own."""
    if _is(node, _ATEN._fused_rms_norm.default):
        h, columns, weight, eps = cast("tuple[Any, ...]", node.args)
        y = next((user for user in node.users if user.args[1] == 0), None)
        if y is not None and len(columns) == 1 and isinstance(weight, Node):
            yield _Norm(h, y, weight, 0.0, torch.finfo(torch.float32).eps if eps is None else eps)
    if not _is(node, _ATEN.rsqrt.default):
        return
    mean, eps = _plus(node.args[0])
    wide = _squared(mean)
    if eps and wide is not None and _value(wide).dtype == torch.float32:
        products = [user for user in node.users if _factor(user, node) is wide]
        yield from _weighted(_narrow(wide), products, eps)


def _squared(mean: Any) -> Node | None:
    """Return x of mean(x², -1, keepdim)."""
    if not _is(mean, _ATEN.mean.dim) or mean.kwargs or len(mean.args) != 3:
        return None
    square, dims, keepdim = mean.args
    if not keepdim or dims not in ([-1], [_value(square).dim() - 1]):
        return None
    if _is(square, _ATEN.pow.Tensor_Scalar) and square.args[1] == 2:
        return square.args[0]  # type: ignore[no-any-return]
    return square.args[0] if _is(square, _ATEN.mul.Tensor) and square.args[0] is square.args[1] else None


def _weighted(h: Node, products: list[Node], eps: float) -> Iterator[_Norm]:
    """Find what multiplies h / sqrt(mean(h²) + eps), or that number rounded, with a weight."""
    dtype = _value(h).dtype
    for factor in [node for product in products for node in (product, *_converted(product, dtype))]:
        for scaled in factor.users:
            weight, weight_bias = _plus(_factor(scaled, factor))
            if isinstance(weight, Node):
                for y in [scaled, *_converted(scaled, dtype)]:
                    yield _Norm(h, y, _narrow(weight), weight_bias, eps)


def _is_sum(node: Node) -> bool:
    if _is(node, _C10D.all_reduce.default):
        c10d: Any = dist.distributed_c10d
        group = c10d._resolve_process_group(node.args[2])
        return bool(group._get_backend(_value(node).device).name() == "commlib")
    return _is(node, _WITH_EFFECTS) and node.args[1] is _OURS.all_reduce.default


def _sum(result: Any) -> _Sum | None:
    """Return the all_reduce that a node is the result of, perhaps copied to where the call put it, or viewed."""
    while (inner := _unmoved(result)) is not None:
        if len(inner.users) > 1:
            return None
        result = inner
    if not _is(result, operator.getitem) and not _is(result, _C10D.wait_tensor.default):
        return None
    call = result.args[0]
    if not _is_sum(call):
        return None
    if _is(call, _WITH_EFFECTS):
        (_token, _op, x, redop, _out, *where), fused = call.args, _OURS.all_reduce_rms_norm.default
    else:
        (x, redop, *where), fused = call.args, _OURS.all_reduce_rms_norm_of_group.default
    return _Sum(call, x, fused, where) if redop.lower() == "sum" else None


def _parts(h: Node) -> Iterator[tuple[_Sum, Node | None]]:
    """Find the all_reduce and the residual that h is the sum of."""
    if (total := _sum(h)) is not None:
        yield total, None
    elif _is(h, _ATEN.add.Tensor) and not h.kwargs:
        for result, residual in (h.args, h.args[::-1]):
            if (total := _sum(result)) is not None and len(result.users) == 1 and isinstance(residual, Node):  # type: ignore[union-attr]
                yield total, residual


# --- what becomes of it -----------------------------------------------------------------------------------------------


def _fused(graph: Graph, norm: _Norm) -> bool:
    """Replace a norm and the all_reduce before it, if there is one that may be part of it; say whether."""
    for total, residual in _parts(norm.h):
        inputs = [total.x, norm.weight] + ([] if residual is None else [residual])
        place = _place(list(graph.nodes), total.call, inputs, norm.h)
        if place is not None and _fits(norm, inputs):
            _replace(place, total, residual, norm)
            return True
    return False


def _place(order: list[Node], call: Node, inputs: list[Node], h: Node) -> Node | None:
    """Return the node behind which all inputs are there; None where another collective or h would come before."""
    first = order.index(call)
    last = max(first, *map(order.index, inputs))
    between = order[first + 1 : last + 1]
    return None if h in between or any(map(_is_collective, between)) else order[last]


def _is_collective(node: Node) -> bool:
    functional = getattr(node.target, "namespace", "") == _C10D.name
    return _is(node, _WITH_EFFECTS) or (functional and not _is(node, _C10D.wait_tensor.default))


def _fits(norm: _Norm, inputs: list[Node]) -> bool:
    """Say whether shapes, types and strides are what the call takes, and its results what the graph goes on with."""
    h, weight = _value(norm.h), _value(norm.weight)
    width = h.shape[-1]
    return (
        all(isinstance(_value(node), torch.Tensor) for node in inputs)  # it may be the size of something
        and h.dtype in TYPES
        and weight.dtype in (h.dtype, torch.float32)
        and weight.device == h.device
        and isinstance(width, int)
        and width % COLUMNS == 0
        and width * h.element_size() <= MAX_ROW_BYTES
        and weight.shape == (width,)
        and all(_alike(node, norm.h) for node in (norm.y, *inputs) if node is not norm.weight)
        and all(_value(node).is_contiguous() for node in (norm.h, norm.y, *inputs))
    )


def _replace(place: Node, total: _Sum, residual: Node | None, norm: _Norm) -> None:
    form: tuple[Any, ...] = (norm.weight, norm.eps, norm.weight_bias)
    if total.fused is _OURS.all_reduce_rms_norm.default:
        form = (norm.weight, None, None, norm.eps, norm.weight_bias, False, None)
    values = _value(norm.h).new_empty(0, dtype=torch.float32, device="cpu"), _value(norm.y), _value(norm.h)
    old_tokens = [user for user in total.call.users if user.args[1:] == (0,)]  # torch's own collectives have none
    with place.graph.inserting_before(place.next):
        before = total.call.args[0] if _is(total.call, _WITH_EFFECTS) else _added(place, _MAKE_TOKEN, (), values[0])
        call = _added(place, _WITH_EFFECTS, (before, total.fused, total.x, residual, *form, *total.where), values)
        token, y, h = (_added(place, operator.getitem, (call, number), value) for number, value in enumerate(values))
    for old, new in (*((old, token) for old in old_tokens), (norm.y, y), (norm.h, h)):
        old.replace_all_uses_with(new)
    for unused in (*old_tokens, token, norm.y, norm.h):
        _drop(unused)


def _added(place: Node, target: Any, args: tuple[Any, ...], value: Any) -> Node:
    node = place.graph.call_function(target, args)
    node.meta["val"] = value
    return node


def _drop(node: Node) -> None:
    """Erase a node that nobody uses any more, and then what only it used."""
    if node.users or node.op != "call_function":
        return
    inputs = node.all_input_nodes
    node.graph.erase_node(node)
    for node_before in inputs:
        _drop(node_before)


# --- how nodes are read -----------------------------------------------------------------------------------------------


def _is(node: Any, target: Any) -> bool:
    return isinstance(node, Node) and node.target is target


def _value(node: Node) -> torch.Tensor:
    value: torch.Tensor = node.meta["val"]
    return value


def _alike(one: Node, other: Node) -> bool:
    a, b = _value(one), _value(other)
    if (a.dim(), a.dtype, a.device) != (b.dim(), b.dtype, b.device):
        return False
    return all(statically_known_true(x == y) for x, y in zip(a.shape, b.shape, strict=True))


def _unmoved(node: Any) -> Node | None:
    """Return what has the same elements in the same order."""
    if _is(node, _ATEN.copy.default):
        inner: Node = node.args[1]
        return inner if _value(inner).dtype == _value(node).dtype else None
    return node.args[0] if any(_is(node, view) for view in _VIEWS) else None


def _plus(node: Any) -> tuple[Any, float]:
    """Return x and number of x + number; without a number, the node and 0."""
    if _is(node, _ATEN.add.Tensor) or _is(node, _ATEN.add.Scalar):
        x, number = node.args
        if isinstance(number, int | float) and not node.kwargs:
            return x, float(number)
    return node, 0.0


def _factor(product: Any, x: Any) -> Any:
    """Return what a product multiplies x with; None where it is no product."""
    if not _is(product, _ATEN.mul.Tensor):
        return None
    one, other = product.args
    return other if one is x else one


def _converted(node: Node, dtype: torch.dtype) -> list[Node]:
    return [user for user in node.users if _source(user) is node and _value(user).dtype == dtype]


def _narrow(node: Node) -> Node:
    source = _source(node)
    return source if source is not None and _value(node).dtype == torch.float32 else node


def _source(node: Node) -> Node | None:
    if _is(node, torch.ops.prims.convert_element_type.default) or _is(node, _ATEN._to_copy.default):
        return node.args[0]  # type: ignore[return-value]
    return None
