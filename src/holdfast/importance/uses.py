"""Seeing where a model uses its parameters, without knowing its modules.

While :class:`Recorder` is active, every call of a function that has a rule (``F.linear``, ``F.conv2d``, …) and takes a
watched parameter is recorded with its input and the place of its output in autograd's graph. Whether these calls are
*all* that happens to a parameter is then read off the graph itself, so a parameter used in any other way is never
silently miscounted: it goes to the fallback.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge
from torch.overrides import TorchFunctionMode

from holdfast.importance.rules import RULES
from holdfast.importance.rules.base import Rule

_ADDITIONS = {torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__, Tensor.add_, Tensor.__iadd__}


class Use:
    """One call of a function with watched parameters."""

    def __init__(self, rule: Rule, names: dict[str, str], edge: GradientEdge | None, shape: torch.Size) -> None:
        self.rule = rule
        self.names = names  # role ("weight", "bias") → parameter name
        self.edge = edge  # None where the call happened outside autograd's graph
        self.shape = shape
        self.version = rule.input._version
        self.additions: list[tuple[GradientEdge, torch.Size]] = []

    @property
    def signature(self) -> tuple[type, tuple[str, ...]]:
        """What must be the same from batch to batch for a plan to hold."""
        return type(self.rule), tuple(self.names.values())

    @property
    def input_changed(self) -> bool:
        """Whether the input was overwritten after the call, so that its value is lost."""
        return self.rule.input._version != self.version


class Recorder(TorchFunctionMode):
    """Records the uses of ``parameters`` while it is active."""

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        super().__init__()
        self.names = {id(parameter): name for name, parameter in parameters.items()}
        self.uses: list[Use] = []
        self._by_output: dict[int, tuple[Tensor, Use]] = {}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run the call, and keep what its rule needs if a watched parameter is in it."""
        kwargs = kwargs or {}
        bind = RULES.get(func)
        rule = bind(*args, **kwargs) if bind is not None else None
        out = func(*args, **kwargs)
        if rule is not None:
            names = {role: self.names[id(p)] for role, p in rule.parameters.items() if id(p) in self.names}
            if names:
                edge = get_gradient_edge(out) if out.requires_grad else None
                use = Use(rule, names, edge, out.shape)
                self.uses.append(use)
                self._by_output[id(out)] = (out, use)
        elif func in _ADDITIONS and self._by_output:
            self._note_addition(out, args)
        return out

    def _note_addition(self, out: Tensor, args: tuple[Any, ...]) -> None:
        """Remember where an output was broadcast over the samples by an addition, as position embeddings are."""
        for operand in args[:2]:
            held = self._by_output.get(id(operand))
            if held is not None and held[0] is operand and out.requires_grad:
                held[1].additions.append((get_gradient_edge(out), out.shape))


def count_edges(outputs: Tensor, parameters: Mapping[str, nn.Parameter]) -> tuple[Counter[str], Counter[Node]]:
    """Count, in the graph behind ``outputs``, the edges into each parameter and into each node."""
    names = {id(parameter): name for name, parameter in parameters.items()}
    into_parameter: Counter[str] = Counter()
    into_node: Counter[Node] = Counter()
    root = outputs.grad_fn
    pending = [] if root is None else [root]
    seen = set(pending)
    while pending:
        for node, _ in pending.pop().next_functions:
            if node is None:
                continue
            into_node[node] += 1
            variable = getattr(node, "variable", None)
            if variable is not None and id(variable) in names:
                into_parameter[names[id(variable)]] += 1
            if node not in seen:
                seen.add(node)
                pending.append(node)
    return into_parameter, into_node
