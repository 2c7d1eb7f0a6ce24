"""A family: its name, what is in it, and how it is made."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from torch import Tensor, nn

T = TypeVar("T")


@dataclass
class Case:
    """A model and a few samples.

    Args:
        model: the network; it is turned to float64, and its parameters are moved off their initial values.
        inputs: a batch of four to six samples, as the formula's own call takes them.
        targets: a class for every sample or position, −100 where a position does not count; or what a regression has.
        forward: how the model is called; by default ``model(inputs)``, with ``*`` and ``**`` as usual.
        formula: how the formula calls it, where the library is left to call it by itself.
        outputs: "classes" where they are logits of one out of several, "values" where they are numbers of any kind,
            "gaussian" where they are a regression's, with its values as targets, "bernoulli" where they are logits of
            labels that are each 0 or 1.
        given: the batch as the library is given it; by default ``(inputs, targets)``.
        mixes: samples depend on each other, so that no gradient of one sample exists, and only an error is right.
        tolerance: the largest relative difference that counts as none.
        dtype: of the model that the library measures, and ``None`` to leave the model as it is.
        parameters: a pattern of those that are measured; by default all.
        moved: whether the parameters are moved off their initial values.
        whole: whether the batch belongs together, so that no part of it is one.
    """

    model: nn.Module
    inputs: Any
    targets: Tensor | None = None
    forward: Callable[[nn.Module, Any], Tensor] | None = None
    formula: Callable[[nn.Module, Any], Tensor] | None = None
    outputs: Literal["classes", "values", "gaussian", "bernoulli"] = "classes"
    given: Any = None
    mixes: bool = False
    tolerance: float = 1e-8
    dtype: Any = "double"
    parameters: str | None = None
    moved: bool = True
    whole: bool = False


@dataclass(frozen=True)
class Family(Generic[T]):
    section: str
    name: str
    what: str
    make: Callable[[], T]


@dataclass
class Section(Generic[T]):
    """Families of one kind, in the order in which they are written."""

    title: str
    families: list[Family[T]] = field(default_factory=list)

    def add(self, name: str) -> Callable[[Callable[[], T]], Callable[[], T]]:
        """Enter a function that makes a family; its docstring says what is in it."""

        def enter(make: Callable[[], T]) -> Callable[[], T]:
            self.enter(name, " ".join((make.__doc__ or "").split()).rstrip("."), make)
            return make

        return enter

    def enter(self, name: str, what: str, make: Callable[[], T]) -> None:
        """Enter a family that has no function of its own."""
        self.families.append(Family(self.title, name, what, make))
