"""What a sharding rule is: how the dimensions of an op's tensors correspond, written as in einsum.

    rms_norm       "...N, N -> ...N"
    rms_norm_bwd   "...N, ...N, N -> ...N, N"

One term per tensor argument and per output. `...` stands for all leading dimensions, a letter for one dimension:

- a lower-case label, and each dimension of `...`, may be sharded: then it is sharded wherever it appears, every process
  works on its part alone, and an output without it is a sum over the processes (`Partial`), as dweight above;
- an upper-case label is needed whole: it is gathered first;
- `-` is a tensor that is the same on every process whatever else is sharded.

A form may depend on the call (a dimension may be sharded only where groups of 128 do not cross its borders), so it may
be a function that gets a `Call`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tle_ops import _meta

Term = tuple[str, ...] | None  # the labels of one tensor; None: always replicated
Terms = tuple[tuple[Term, ...], tuple[Term, ...]]  # of the tensor arguments, and of the outputs


class Call:
    """One call with global shapes: the arguments by name, and how many processes there are."""

    def __init__(self, op: str, args: tuple, processes: int) -> None:
        self.op, self.processes = op, processes
        contract = _meta.CONTRACTS[op].fn
        self.args: dict[str, Any] = by_name(op, args)
        globally = {n: _global_meta(a) if isinstance(a, Tensor) else a for n, a in self.args.items()}
        outputs = contract(**globally)
        self.outputs: tuple[Tensor, ...] = (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)
        self.single = isinstance(outputs, Tensor)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.args[name]
        except KeyError:
            raise AttributeError(name) from None

    def splits(self, size: int, unit: int = 1) -> bool:
        """Whether `size` elements split evenly over all processes, without cutting a unit of `unit` elements."""
        return unit > 0 and size % (self.processes * unit) == 0 and size > 0


def by_name(op: str, args: tuple) -> dict[str, Any]:
    """All arguments: the dispatcher drops those that equal the schema's defaults."""
    parameters = _parameters(op)
    return {p.name: args[i] if i < len(args) else p.default for i, p in enumerate(parameters)}


@functools.cache
def _parameters(op: str) -> tuple[inspect.Parameter, ...]:
    return tuple(inspect.signature(_meta.CONTRACTS[op].fn).parameters.values())


def _global_meta(t: Tensor) -> Tensor:
    return torch.empty(t.shape, dtype=t.dtype, device="meta")


class Rule(NamedTuple):
    """
    form: the notation above, or Call -> notation or terms.
    linear: Call -> groups of argument names. If exactly the tensors of a group are pending sums (`Partial`), so are the
        outputs: nothing is reduced. Everything else is reduced before the op.
    across: label -> (Across, *local arguments) -> local outputs, which serves the call where that label is sharded.
    localize: (arguments by name, the same with local tensors) -> arguments to replace: sizes that an op is told as
        numbers.
    """

    form: str | Callable[[Call], str | Terms]
    linear: Callable[[Call], tuple[tuple[str, ...], ...]] = lambda call: ()
    across: dict[str, Callable] = {}
    localize: Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]] | None = None


def terms_of(rule: Rule, call: Call) -> Terms:
    """The labels of every dimension, `...` written out."""
    form = rule.form(call) if callable(rule.form) else rule.form
    if not isinstance(form, str):
        return form
    left, right = form.split("->")
    given = left.split(",")
    wanted = tensor_arguments(call.op)
    if len(given) != len(wanted):
        raise RuntimeError(f"{call.op}: the rule {form!r} must have a term for each of {', '.join(wanted)}")
    inputs = tuple(
        None if call.args[name] is None else _expand(term, call.args[name].dim())
        for name, term in zip(wanted, given, strict=True)
    )
    outputs = tuple(_expand(term, t.dim()) for term, t in zip(right.split(","), call.outputs, strict=True))
    return inputs, outputs


def _expand(term: str, rank: int) -> Term:
    term = term.strip()
    if term == "-":
        return None
    if not term.startswith("..."):
        return tuple(term)
    letters = term.removeprefix("...")
    return (*(f"dim{d}" for d in range(rank - len(letters))), *letters)


def may_shard(label: str) -> bool:
    return label[0].islower()


@functools.cache
def tensor_arguments(op: str) -> tuple[str, ...]:
    """Names of the arguments of `op` that are tensors, or may be."""
    schema = getattr(torch.ops.tle, op).default._schema
    return tuple(a.name for a in schema.arguments if "Tensor" in str(a.type))
