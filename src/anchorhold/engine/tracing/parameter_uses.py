"""Seeing where a model uses its parameters, without knowing its modules.

While :class:`Recorder` is active, every call of a function that has a rule (``F.linear``, ``F.conv2d``, …) and takes a
watched parameter is recorded with its input and the place of its output in autograd's graph. The call itself is made
with a stand-in, a leaf of its own that shares the parameter's memory. So whatever edge into a *parameter* the graph
still has is a use that no rule saw, and a parameter used in any such way is never silently miscounted: it goes to the
fallback.
"""

import types
from collections import Counter
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from anchorhold.engine.isolation.written_parameters import Writes
from anchorhold.engine.rules import RULES
from anchorhold.engine.rules.base import Rule
from anchorhold.engine.tracing.parameter_views import Part, part_of

_ADDITIONS = {torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__, Tensor.add_, Tensor.__iadd__}

_DIFFERENTIATIONS = {torch.autograd.grad, torch.autograd.backward, Tensor.backward}
"""What a model calls to differentiate itself (forces from an energy, say)."""


class Use:
    """One call of a function with watched parameters."""

    def __init__(self, rule: Rule, parts: dict[str, Part], out: Tensor) -> None:
        self.rule = rule
        self.parts = parts  # role ("weight", "bias") → the parameter, or the part of it, in that role
        self.edge = _lasting_edge(out)
        self.differentiated = False  # whether the model itself sent gradients through it, which use parameters again
        self.shape = out.shape
        self.bytes = out.numel() * out.element_size()
        self.version = rule.input._version
        self.additions: list[tuple[GradientEdge, torch.Size]] = []

    @property
    def signature(self) -> tuple[type, tuple[Part, ...]]:
        """What must be the same from batch to batch for a plan to hold."""
        return type(self.rule), tuple(self.parts.values())

    @property
    def input_changed(self) -> bool:
        """Whether the input was overwritten after the call, so that its value is lost."""
        return self.rule.input._version != self.version


class Recorder(TorchFunctionMode):
    """Records the uses of ``parameters`` while it is active, and lets ``writes`` see every call."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], writes: Writes) -> None:
        super().__init__()
        self.writes = writes
        self.names = {id(parameter): name for name, parameter in parameters.items()}
        self.uses: list[Use] = []
        self._by_output: MutableMapping[Tensor, Use] = WeakIdKeyDictionary()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run the call, and keep what its rule needs if a watched parameter is in it."""
        kwargs = kwargs or {}
        if func in _OPENED:
            with self:
                return _OPENED[func](*args, **kwargs)
        self.writes.before(func, args, kwargs)
        if func in _DIFFERENTIATIONS:
            for use in self.uses:
                use.differentiated = True
        rule = _bound(func, args, kwargs)
        parts = {} if rule is None else self._parts(rule)
        watched = {id(rule.parameters[role]) for role in parts} if rule is not None else set()
        # A parameter that is also the call's input, as in F.linear(p, p), is more than the rule accounts for.
        if rule is None or sum(id(x) in watched for x in (*args, *kwargs.values())) != len(parts) or not parts:
            out = func(*args, **kwargs)
            if func in _ADDITIONS and not kwargs:
                self._note_addition(out, args)
            return out
        try:
            stand_ins = {id(x): x.detach().requires_grad_() for role in parts for x in [rule.parameters[role]]}
        except RuntimeError:
            return func(*args, **kwargs)  # inside one of torch.func's transforms, which has no leaves
        out = func(
            *(stand_ins.get(id(x), x) for x in args), **{key: stand_ins.get(id(x), x) for key, x in kwargs.items()}
        )
        if out.requires_grad:  # not so under no_grad, where the call adds nothing to any gradient
            use = Use(rule, parts, out)
            self.uses.append(use)
            self._by_output[out] = use
        return out

    def _parts(self, rule: Rule) -> dict[str, Part]:
        found = {role: part_of(parameter, self.names) for role, parameter in rule.parameters.items()}
        return {role: part for role, part in found.items() if part is not None}

    def _note_addition(self, out: Tensor, args: tuple[Any, ...]) -> None:
        """Remember where an output was broadcast over the samples by an addition, as position embeddings are."""
        for operand in args:
            if isinstance(operand, Tensor) and operand in self._by_output:
                edge = _lasting_edge(out)
                if edge is not None:
                    self._by_output[operand].additions.append((edge, out.shape))


def read_graph(outputs: Tensor, parameters: Mapping[str, nn.Parameter]) -> tuple[set[str], Counter[Node]]:
    """Return which parameters the graph behind ``outputs`` leads to, and the number of edges into each node."""
    names = {id(parameter): name for name, parameter in parameters.items()}
    reached: set[str] = set()
    edges: Counter[Node] = Counter()
    pending = [outputs.grad_fn] if outputs.grad_fn is not None else []
    while pending:
        for node, _ in pending.pop().next_functions:
            if node is None:
                continue
            edges[node] += 1
            if edges[node] == 1:
                pending.append(node)
                variable = getattr(node, "variable", None)
                if variable is not None and id(variable) in names:
                    reached.add(names[id(variable)])
    return reached, edges


def _bound(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Rule | None:
    bind = RULES.get(func)
    if bind is None:
        return None
    try:
        return bind(*args, **kwargs)
    except TypeError:
        return None  # an unusual form of the call, such as one with out=


def _lasting_edge(out: Tensor) -> GradientEdge | None:
    """Return the place of a call's output in autograd's graph, which must be on the way of all that it leads to.

    Where the output is a view (as that of ``F.linear`` along a sequence) and is overwritten later, say by an in-place
    ReLU, autograd goes around the view's own place; but it always passes the base's.
    """
    if not out.requires_grad:
        return None
    base = out._base
    if base is None or base.is_leaf:
        return get_gradient_edge(out)
    whole = base.numel() == out.numel() and base.is_contiguous() and out.is_contiguous()
    return get_gradient_edge(base) if whole else None


def _opened(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return one of torch's functions without its question whether someone overrides it as a whole.

    While a mode is active the answer is yes, and the calls inside, which have rules, would never be seen.
    """
    assert isinstance(function, types.FunctionType)
    scope = {**function.__globals__, "has_torch_function": lambda _: False}
    return types.FunctionType(function.__code__, scope, function.__name__, function.__defaults__)


_OPENED = {F.multi_head_attention_forward: _opened(F.multi_head_attention_forward)}

__all__ = ["Recorder", "Use", "read_graph"]
