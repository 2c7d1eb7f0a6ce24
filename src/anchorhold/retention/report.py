"""What a model still knows of what was kept, as users are told."""

from dataclasses import dataclass, field

from anchorhold.errors import ConfigurationError


@dataclass(frozen=True)
class SetRetention:
    """What is left of one kept set."""

    name: str
    kl: float
    """KL(p_old‖p_new), in nats a sample or token."""
    agreement: float
    """The part of predictions whose most likely class is still the same."""
    per: str
    """What a prediction is of: ``"sample"`` or ``"token"``."""
    count: int
    """How many predictions were compared, over all processes."""
    loss_then: float | None = None
    """The mean loss when the set was kept, where it has labels."""
    loss_now: float | None = None
    """That of now."""
    error: float | None = None
    """The standard error of ``kl``, by its spread over the kept samples: of others of the same kind it may be as far
    off as twice that."""


@dataclass(frozen=True)
class Retention:
    """What is left of all kept sets."""

    sets: tuple[SetRetention, ...]
    tolerance: float | None = None
    """How much may be lost, where that was said."""
    second_order_prediction: float | None = field(default=None, compare=False)
    """½⟨D, Q(D)⟩, what a Fisher's importance predicts to be lost since the last consolidation, where it is one: for
    comparison, and not to be trusted. A diagonal's is far too small; ``kl`` is what was measured."""

    @property
    def worst(self) -> SetRetention:
        """The set that has lost most."""
        return max(self.sets, key=lambda each: each.kl)

    @property
    def kl(self) -> float:
        """The KL of the worst set."""
        return self.worst.kl

    @property
    def is_within(self) -> bool:
        """Whether no set has lost more than the tolerance; without one, nothing is too much."""
        return self.tolerance is None or self.kl <= self.tolerance

    def __getitem__(self, name: str) -> SetRetention:
        found = {each.name: each for each in self.sets}
        if name not in found:
            raise ConfigurationError(f"No set was kept by the name {name!r}; there are {', '.join(map(repr, found))}.")
        return found[name]

    def to_dict(self, prefix: str = "anchorhold/") -> dict[str, float]:
        """Return all of it as numbers by name, for loggers."""
        found = {"kl": self.kl, "agreement": min(each.agreement for each in self.sets)}
        if self.second_order_prediction is not None:
            found["second_order_prediction"] = self.second_order_prediction
        for each in self.sets:
            found |= {f"kl/{each.name}": each.kl, f"agreement/{each.name}": each.agreement}
            if each.error is not None:
                found[f"kl_error/{each.name}"] = each.error
            if each.loss_now is not None and each.loss_then is not None:
                found |= {f"loss/{each.name}": each.loss_now, f"loss_then/{each.name}": each.loss_then}
        return {f"{prefix}{name}": value for name, value in found.items()}

    def __str__(self) -> str:
        wide = max(len("kept set"), *(len(each.name) for each in self.sets))
        errors = ("" if each.error is None else f" ± {each.error:.2g}" for each in self.sets)
        kls = [f"{each.kl:.4g}{error} / {each.per}" for each, error in zip(self.sets, errors, strict=True)]
        across = max(14, *map(len, kls))
        lines = [f"{'kept set':{wide}}  {'KL, nats':>{across}}  {'same class':>10}  {'loss then':>9}  {'now':>9}"]
        for each, kl in zip(self.sets, kls, strict=True):
            losses = [f"{loss:9.4g}" if loss is not None else f"{'–':>9}" for loss in (each.loss_then, each.loss_now)]
            lines.append(f"{each.name:{wide}}  {kl:>{across}}  {each.agreement:10.1%}  {losses[0]}  {losses[1]}")
        if self.tolerance is not None:
            side = "within" if self.is_within else "beyond"
            lines.append(f"worst: {self.worst.name}, {side} the tolerance of {self.tolerance:g}")
        return "\n".join(lines)
