"""Record what a forward pass does with parameters: where it uses them, and whether it writes to them.

While :class:`Recorder` is active, every call of a function that has a rule (``F.linear``, ``F.conv2d``, …) and takes a
watched parameter is recorded with its input and the place of its output in autograd's graph. The call itself is made
with a stand-in, a leaf of its own that shares the parameter's memory. So whatever edge into a *parameter* the graph
still has is a use that no rule saw, and a parameter used in any such way is never silently miscounted: it goes to the
fallback. No knowledge of the model's modules is needed.
"""

import math
import types
from collections import Counter
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from anchorhold.engine.batches import Forward
from anchorhold.engine.isolation import renormed_among, versions_of
from anchorhold.engine.rules import RULES
from anchorhold.engine.rules.base import Part, Rule, part_of
from anchorhold.engine.rules.embedding import Embedding
from anchorhold.errors import BatchError, ModelError, NotFiniteError

_HARMLESS = {"requires_grad_", "retain_grad_"}


class _Kept(NamedTuple):
    name: str
    parameter: nn.Parameter
    memory: Tensor
    values: Tensor
    call: str


class Writes:
    """Watches one forward pass for what it writes to a model's parameters, which is put back and refused.

    Weights that are clipped or normalised in place in the forward pass (``self.weight.data.clamp_(-1, 1)``) differ
    after it. A copy of every weight would show and undo that, and take the memory of a second model; so only what a
    call is about to write to is copied, and versions tell of what was written to in another way.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.parameters = dict(model.named_parameters())
        self.versions = versions_of(self.parameters.values())
        self.kept: dict[str, _Kept] = {}

    def before(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Keep the parameters that a call writes to, as far as its name or its arguments tell."""
        name, in_place = _name_of(func)
        targets = (args[:1], kwargs) if in_place or "out" not in kwargs else kwargs["out"]
        for target in tree_leaves(targets):
            if isinstance(target, Tensor) and target.layout is torch.strided:
                for path in self._by_memory.get(_address(target), []):
                    if path not in self.kept:
                        parameter = self.parameters[path]
                        # The alias by .data keeps the memory even if the pass gives the parameter another.
                        self.kept[path] = _Kept(path, parameter, parameter.data, parameter.data.clone(), name)

    def undo(self) -> _Kept | None:
        """Put back what was changed, and return the first of it."""
        if not self.kept:
            return None
        changed = [kept for kept in self.kept.values() if not _same(kept.parameter.data, kept.values)]
        for kept in changed:
            # The pass has given the parameter other memory: its own comes back first, then the values in it.
            if _address(kept.parameter) != _address(kept.memory):
                kept.parameter.data = kept.memory
            kept.memory.copy_(kept.values)
        return changed[0] if changed else None

    def check(self) -> None:
        """Raise ModelError if the forward pass changed a parameter, once it is put back where that can be done."""
        first = self.undo()
        if first is not None:
            raise ModelError(
                f"The model's forward pass writes to its parameter {first.name!r} (by {first.call!r}), so its weights "
                "are not those that were trained, and change while they are measured. They were put back. Do that "
                "after the optimizer's step instead, or in the forward pass with a tensor of its own: w = "
                "self.weight.clamp(-1, 1)."
            )
        versions = zip(self.parameters, self.versions, versions_of(self.parameters.values()), strict=True)
        for name, before, after in versions:
            if before != after and name not in self.kept and id(self.parameters[name]) not in self._parametrised:
                raise ModelError(
                    f"The model's forward pass wrote to its parameter {name!r} in a way that cannot be undone, so its "
                    "weights may be other ones now: load them again. Write to parameters after the optimizer's step "
                    "instead, or compute in the forward pass with a tensor of its own."
                )

    @cached_property
    def _parametrised(self) -> set[int]:
        """The ids of parameters that PEFT's adapters of parameters replace while a layer is called.

        They are parametrised for that time, for which torch sets each to itself: another version of the same numbers,
        by a call that the recorder does not see.
        """
        adapted: list[Any] = [module for module in self.model.modules() if hasattr(module, "parameter_name")]
        return {id(module.get_param()) for module in adapted if hasattr(module, "get_param")}

    @cached_property
    def _by_memory(self) -> dict[int, list[str]]:
        """The names of the parameters in each piece of memory, of which several may share one."""
        found: dict[int, list[str]] = {}
        for name, parameter in self.parameters.items():
            if parameter.layout is torch.strided:
                found.setdefault(_address(parameter), []).append(name)
        # The address of tensors without memory, which share none.
        found.pop(0, None)
        return found


_WRITING = {"__i", "__s"}
"""How the names begin of Python's own methods that write: ``__iadd__``, ``__setitem__``, ``__set__``."""


@lru_cache(4096)
def _name_of(func: Callable[..., Any]) -> tuple[str, bool]:
    """Return the name of a function, and whether it is one that writes to its first argument."""
    name = str(getattr(func, "__name__", "")).partition(".")[0]  # of aten.mul_.Tensor: mul_
    return name, name.endswith("_") and name not in _HARMLESS and (name[-2:] != "__" or name[:3] in _WRITING)


def _address(tensor: Tensor) -> int:
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # a tensor without memory of its own, as inside torch.func
        return 0


def _same(x: Tensor, y: Tensor) -> bool:
    if x.shape != y.shape or x.dtype != y.dtype:
        return False
    # A NaN is not equal to itself, and may have been there before.
    return torch.equal(x, y) or bool(((x == y) | (x.isnan() & y.isnan())).all())


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
        self.signature = type(rule), tuple(parts.values())
        """The rule and the parameters, which have to be the same from batch to batch for a plan to hold."""

    @property
    def input_changed(self) -> bool:
        """Whether the input was overwritten after the call, so that its value is lost."""
        return self.rule.input._version != self.version


class Recorder(TorchFunctionMode):
    """Records the uses of ``parameters`` while it is active, and lets ``writes`` see every call."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], writes: Writes) -> None:
        super().__init__()
        self.writes = writes
        self.names = dict(zip(map(id, parameters.values()), parameters, strict=True))
        self.uses: list[Use] = []
        # By identity, since == compares numbers; weakly, so that outputs can be freed in the pass.
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
            # A mode is off while it handles a call; on again, it sees the calls inside.
            with self:
                return _OPENED[func](*args, **kwargs)
        if _name_of(func)[1] or "out" in kwargs or kwargs.get("inplace"):
            self.writes.before(func, args, kwargs)
        if func in _DIFFERENTIATIONS:
            # Of all so far: which of them the gradients go through is not known.
            for use in self.uses:
                use.differentiated = True
        rule = _bound(func, args, kwargs) if func in RULES else None
        parts: dict[str, Part] = {}
        watched: dict[int, Tensor] = {}
        for role, parameter in rule.parameters.items() if rule is not None else ():
            part = part_of(parameter, self.names)
            if part is not None:
                parts[role] = part
                watched[id(parameter)] = parameter
        given = map(id, (*args, *kwargs.values()))
        # A parameter that is also the call's input, as in F.linear(p, p), is more than the rule accounts for.
        if rule is None or not parts or sum(map(watched.__contains__, given)) != len(parts):
            out = func(*args, **kwargs)
            if func in _ADDITIONS and not kwargs:
                self._note_addition(out, args)
            return out
        try:
            stand_ins = {place: parameter.detach().requires_grad_() for place, parameter in watched.items()}
        except RuntimeError:
            return func(*args, **kwargs)  # inside one of torch.func's transforms, which has no leaves
        named = {key: stand_ins.get(id(x), x) for key, x in kwargs.items()} if kwargs else kwargs
        out = func(*[stand_ins.get(id(x), x) for x in args], **named)
        if out.requires_grad:  # not so under no_grad, where the call adds nothing to any gradient
            use = Use(rule, parts, out)
            self.uses.append(use)
            self._by_output[out] = use
        return out

    def _note_addition(self, out: Tensor, args: tuple[Any, ...]) -> None:
        """Remember where an output was broadcast over the samples by an addition, as position embeddings are."""
        for operand in args:
            if isinstance(operand, Tensor) and operand in self._by_output:
                edge = _lasting_edge(out)
                if edge is not None:
                    self._by_output[operand].additions.append((edge, out.shape))


def read_graph(outputs: Tensor, parameters: Mapping[str, nn.Parameter]) -> tuple[set[str], Counter[Node]]:
    """Return which parameters the graph behind ``outputs`` leads to, and the number of edges into each node."""
    names = dict(zip(map(id, parameters.values()), parameters, strict=True))
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
    try:
        return RULES[func](*args, **kwargs)
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


def record(
    model: nn.Module, parameters: Mapping[str, nn.Parameter], forward: Forward, inputs: Any
) -> tuple[list[Use], Tensor]:
    """Run the model and return its uses of ``parameters`` and its outputs.

    Raise ModelError if it writes to its parameters or returns complex numbers, BatchError if it returns no tensor, and
    NotFiniteError if an output is not finite.
    """
    writes = Writes(model)
    try:
        with Recorder(parameters, writes) as recorder:
            outputs = forward(model, inputs)
    # Ctrl-C too must leave the user's weights as they were.
    except BaseException:
        writes.undo()
        raise
    writes.check()
    if not isinstance(outputs, Tensor):
        raise BatchError(
            f"`forward` returned a {type(outputs).__name__}; expected the tensor of outputs, [N, ...]. Return the "
            "tensor to measure, such as the logits."
        )
    if outputs.is_complex():
        raise ModelError(
            f"The model's outputs are complex, of type {outputs.dtype}; expected real ones, which a softmax and a norm "
            "are defined for. Give a `forward` that returns what is read off them: forward=lambda model, inputs: "
            "model(inputs).abs(), or .real, or torch.view_as_real(model(inputs)).flatten(-2)."
        )
    if not bool((outputs < math.inf).all()):  # -inf is a class that is masked out
        raise NotFiniteError(
            "The model's outputs hold NaN or infinity; expected numbers. Check the inputs for NaN, and the weights for "
            "divergence."
        )
    if shortened := renormed_among(parameters):
        _check_shortened(shortened, parameters, recorder.uses, outputs)
    return recorder.uses, outputs


def _check_shortened(
    tables: list[str], parameters: Mapping[str, nn.Parameter], uses: list[Use], outputs: Tensor
) -> None:
    """Raise ModelError if an embedding shortens rows of a table (``max_norm``) that the model uses elsewhere too.

    What that other use sees depends on which rows were looked up before, by this sample or by others.
    """
    for name in tables:
        own = [use.rule for use in uses if any(part.name == name for part in use.parts.values())]
        looked_up = [isinstance(rule, Embedding) and rule.shortens for rule in own]
        if not all(looked_up) or (own and name in read_graph(outputs, parameters)[0]):
            raise ModelError(
                f"An embedding with max_norm shortens rows of {name!r}, which the model uses elsewhere too (a tied "
                "head?), so its outputs for a sample depend on which rows were looked up before it. Shorten the whole "
                "table before measuring: with torch.no_grad(): weight.copy_(weight.renorm(2, 0, max_norm))."
            )
