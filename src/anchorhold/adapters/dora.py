r"""DoRA as PEFT has it, of linear layers: the rows of W + s·BA, each scaled to a length of its own.

Liu et al. 2024 (arXiv 2402.09353): the merged weight is :math:`\frac{m}{\|W + sBA\|}(W + sBA)` with one m and one norm
an output, so that :math:`\Delta` is that less W, a whole matrix. It is the only kind that has to read W, which so has
to be of floating-point numbers, and without the adapter merged into it.
"""

from torch import Tensor, nn

from anchorhold.adapters.changes import Change, Product
from anchorhold.adapters.lora import Lora
from anchorhold.adapters.mean_change import Between, Values, product_between
from anchorhold.errors import ConfigurationError


class Dora(Lora):
    """A linear layer with one DoRA adapter."""

    @classmethod
    def describes(cls, module: nn.Module) -> bool:
        """Whether it has LoRA's factors and lengths beside them."""
        return super().describes(module) and len(getattr(module, "lora_magnitude_vector", ())) > 0

    def change(self) -> Change | None:
        """Return m/‖W + s·BA‖ (W + s·BA) − W, of outputs × inputs."""
        acting = self.acting(self._names())
        if not acting:
            return None
        if self.module.merged:
            raise ConfigurationError(
                "A DoRA adapter that is merged into its weight, which is therefore not at hand. Unmerge it first."
            )
        (name,) = acting
        b, a = self._product(name)
        weight = self._weight(b)
        turned = weight + b @ a
        length = self.module.lora_magnitude_vector[name].weight
        found: Tensor = (length / turned.norm(dim=1)).unsqueeze(1) * turned - weight
        return found

    def between(self, now: Values, then: Values, share: float) -> Between | None:
        r"""Return the values by which the merged weight is the mean of both.

        With :math:`D = m/\|W + sBA\|` one number a row, it is :math:`D(W + sBA)`, and the mean of two is
        :math:`D'W + s(cDBA + (1-c)D^*B^*A^*)` with :math:`D' = cD + (1-c)D^*`: again of that kind, with
        :math:`B'A' = c\frac{D}{D'}BA + (1-c)\frac{D^*}{D'}B^*A^*` and m' the lengths of its rows.
        """
        (name,) = self._names()
        b, a = self._factors(name)
        m, s = self.module.lora_magnitude_vector[name].weight, self.module.scaling[name]
        weight = self._weight(now(b))
        d, d_then = (at(m) / (weight + s * at(b) @ at(a)).norm(dim=1) for at in (now, then))
        d_new = share * d + (1 - share) * d_then
        if not bool((d_new > 0).all()):
            return None
        ends = [Product((rows / d_new).unsqueeze(1) * at(b), at(a)) for rows, at in ((d, now), (d_then, then))]
        made, error = product_between(ends[0], ends[1], share)
        return Between({b: made.b, a: made.a, m: d_new * (weight + s * made.b @ made.a).norm(dim=1)}, error)

    def _weight(self, like: Tensor) -> Tensor:
        """Return W of outputs × inputs, as precisely as another tensor."""
        weight: Tensor = self.module.get_base_layer().weight.detach().to(like.dtype)
        return weight.mT if getattr(self.module, "fan_in_fan_out", False) else weight

    def parameters(self) -> list[nn.Parameter]:
        """Return the factors and the lengths."""
        return [*super().parameters(), *(layer.weight for layer in self.module.lora_magnitude_vector.values())]

    def refusal(self) -> str | None:
        """Refuse what W cannot be read of, and several adapters, whose norms are each of W alone."""
        weight = getattr(self.layer, "weight", None)
        if weight is None or weight.ndim != 2 or isinstance(self.layer, nn.Embedding):
            return "its DoRA adapter is not of a linear layer"
        if not weight.is_floating_point():
            return f"its DoRA adapter's base weight is of {weight.dtype}, and has to be read"
        if len(self._names()) > 1:
            return "it has several adapters, one of them DoRA"
        return "its DoRA adapter is merged into the weight: unmerge it first" if self.module.merged else None
