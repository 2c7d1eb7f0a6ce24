r"""Linear and convolutional layers whose weights are independent Gaussians.

A parameter becomes a mean, which keeps the parameter's name, and the logarithm of a variance beside it. In training a
layer draws: with local reparametrisation (Kingma, Salimans and Welling 2015, arXiv 1506.02557) not the weights but what
they make of each sample, :math:`\mathcal N(\mu_W a + \mu_b,\ \sigma_W^2 a^2 + \sigma_b^2)`, so that every sample has
noise of its own. In evaluation it is the layer of the means.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anchorhold.errors import ConfigurationError
from anchorhold.settings import choice, number

Noise = Literal["outputs", "weights"]
"""outputs: local reparametrisation. weights: one draw of all weights for the whole batch."""
Model = TypeVar("Model", bound=nn.Module)

LOG_VARIANCE = "_log_variance"
"""What follows a parameter's name in that of its variance's logarithm."""


class Gaussian(NamedTuple):
    """Independent Gaussians, one a weight."""

    mean: Tensor
    log_variance: Tensor


def kl(q: Gaussian, p: Gaussian) -> Tensor:
    r"""Return KL(q‖p), summed over all weights, how far one Gaussian is from another, each weight by itself.

    .. math::
        \mathrm{KL}(q\,\|\,p) = \tfrac12 \sum \Bigl[ v_p - v_q + e^{v_q - v_p} + (\mu_q - \mu_p)^2 e^{-v_p} - 1 \Bigr],
        \qquad v = \log \sigma^2

    Nguyen, Li, Bui and Turner 2018, "Variational Continual Learning" (arXiv 1710.10628), equation 4. On the means it is
    a quadratic hold of importance :math:`1/(2\sigma_p^2)`.
    """
    wider = q.log_variance - p.log_variance
    away = (q.mean - p.mean).square() * torch.exp(-p.log_variance)
    return 0.5 * (wider.exp() - wider + away - 1).sum()


def kl_gradient(q: Gaussian, p: Gaussian) -> Gaussian:
    """Return its gradient by q's means and logarithms of variances."""
    by_mean = (q.mean - p.mean) * torch.exp(-p.log_variance)
    return Gaussian(by_mean, 0.5 * torch.expm1(q.log_variance - p.log_variance))


class MeanField(nn.Module):
    """What all such layers have in common; made from existing layers by :func:`mean_field`."""

    weight: Tensor
    bias: Tensor | None
    weight_log_variance: nn.Parameter
    bias_log_variance: nn.Parameter | None
    noise: Noise
    generator: torch.Generator | None = None
    """Where noise is drawn from; torch's own generator by default."""
    always: bool = False
    """Whether it draws in evaluation too."""
    LAYER: ClassVar[type[nn.Module]]

    def gaussians(self) -> dict[str, Gaussian]:
        """Return weight and bias as they are distributed, by the names of their means."""
        found = {"weight": Gaussian(self.weight, self.weight_log_variance)}
        if self.bias is not None and self.bias_log_variance is not None:
            found["bias"] = Gaussian(self.bias, self.bias_log_variance)
        return found

    def forward(self, input: Tensor, *options: Any) -> Tensor:
        """Return the layer's outputs, drawn in training."""
        if not (self.training or self.always):
            return self.mapped(input, self.weight, self.bias, *options)
        if self.noise == "weights":
            drawn = {name: self._drawn(g.mean, torch.exp(0.5 * g.log_variance)) for name, g in self.gaussians().items()}
            return self.mapped(input, drawn["weight"], drawn.get("bias"), *options)
        mean = self.mapped(input, self.weight, self.bias, *options)
        of_bias = None if self.bias_log_variance is None else self.bias_log_variance.exp()
        variance = self.mapped(input.square(), self.weight_log_variance.exp(), of_bias, *options)
        # Inputs that are all 0 leave none, where a root has no slope.
        return self._drawn(mean, variance.clamp(min=torch.finfo(variance.dtype).tiny).sqrt())

    def mapped(self, input: Tensor, weight: Tensor, bias: Tensor | None, *options: Any) -> Tensor:
        """Return what the layer makes of an input with given weights, and what else it is called with."""
        raise NotImplementedError

    def _drawn(self, mean: Tensor, deviation: Tensor) -> Tensor:
        noise = torch.empty_like(mean, requires_grad=False).normal_(generator=self.generator)
        return mean + deviation * noise


class MeanFieldLinear(MeanField, nn.Linear):  # type: ignore[misc]  # torch says that it always has a bias
    """A linear layer."""

    LAYER = nn.Linear

    def mapped(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(input, weight, bias)


class _MeanFieldConv(MeanField):
    def mapped(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return the convolution, padded as the layer's own."""
        outputs: Tensor = self._conv_forward(input, weight, bias)  # type: ignore[operator]
        return outputs


class MeanFieldConv1d(_MeanFieldConv, nn.Conv1d):
    """A convolution over one dimension."""

    LAYER = nn.Conv1d


class MeanFieldConv2d(_MeanFieldConv, nn.Conv2d):
    """A convolution over two dimensions."""

    LAYER = nn.Conv2d


class MeanFieldConv3d(_MeanFieldConv, nn.Conv3d):
    """A convolution over three dimensions."""

    LAYER = nn.Conv3d


class _MeanFieldTransposed(MeanField):
    TRANSPOSED: ClassVar[Callable[..., Tensor]]

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        """Return the layer's outputs, drawn in training; of a size that may be asked for, as of torch's own layer."""
        return super().forward(input, output_size)

    def mapped(
        self, input: Tensor, weight: Tensor, bias: Tensor | None, output_size: list[int] | None = None
    ) -> Tensor:
        """Return the transposed convolution, padded as the layer's own."""
        layer: Any = self
        own = layer.stride, layer.padding, layer.kernel_size
        size = len(layer.kernel_size)
        padded = layer._output_padding(input, output_size, *own, size, layer.dilation)  # noqa: SLF001 (as torch does)
        return type(self).TRANSPOSED(
            input, weight, bias, layer.stride, layer.padding, padded, layer.groups, layer.dilation
        )


class MeanFieldConvTranspose1d(_MeanFieldTransposed, nn.ConvTranspose1d):
    """A transposed convolution over one dimension."""

    LAYER = nn.ConvTranspose1d
    TRANSPOSED = F.conv_transpose1d


class MeanFieldConvTranspose2d(_MeanFieldTransposed, nn.ConvTranspose2d):
    """A transposed convolution over two dimensions."""

    LAYER = nn.ConvTranspose2d
    TRANSPOSED = F.conv_transpose2d


class MeanFieldConvTranspose3d(_MeanFieldTransposed, nn.ConvTranspose3d):
    """A transposed convolution over three dimensions."""

    LAYER = nn.ConvTranspose3d
    TRANSPOSED = F.conv_transpose3d


_EVERY: tuple[type[MeanField], ...] = (
    MeanFieldLinear,
    *(MeanFieldConv1d, MeanFieldConv2d, MeanFieldConv3d),
    *(MeanFieldConvTranspose1d, MeanFieldConvTranspose2d, MeanFieldConvTranspose3d),
)
KINDS: dict[type[nn.Module], type[MeanField]] = {kind.LAYER: kind for kind in _EVERY}


def mean_field(model: Model, log_variance: float = -6.0, noise: Noise = "outputs") -> Model:
    """Let the weights of a model's linear and convolutional layers be Gaussians around where they are, in place.

    >>> model = anchorhold.variational.mean_field(model)
    >>> optimizer = torch.optim.Adam(model.parameters())  # after it, since there are parameters that were not there
    >>> guard = anchorhold.Guard(model, "fine-tune", holds=[anchorhold.Variational(samples=60_000)])

    Layers of other kinds, and frozen ones, stay as they are. A model that has been trained plainly starts better than
    one that has not: with wide weights from the first step, it learns little (Nguyen et al. 2018, arXiv 1710.10628).

    Args:
        model: any; a layer's hooks, name and place stay.
        log_variance: the logarithm of every variance, to begin with.
        noise: ``"outputs"``, local reparametrisation, or ``"weights"``, one draw for the whole batch.
    """
    start = checked_log_variance("log_variance", log_variance)
    choice("noise", noise, get_args(Noise))
    if not isinstance(model, nn.Module):
        raise ConfigurationError(f"mean_field() was given a {type(model).__name__}; expected a torch.nn.Module.")
    names = {module: name for name, module in model.named_modules()}
    layers = [module for module in names if type(module) in KINDS and module.weight.requires_grad]
    if not layers:
        if mean_field_layers(model):
            raise ConfigurationError(
                "mean_field() of a model whose layers are all distributions already; expected to be called once. To "
                "begin anew, make the model anew."
            )
        raise ConfigurationError(
            f"mean_field() found no layer to change: expected some of {', '.join(kind.__name__ for kind in KINDS)} "
            "that are trained, and of no class of their own."
        )
    _refuse_shared(model, layers, names)
    for layer in layers:
        layer.__class__ = KINDS[type(layer)]
        assert isinstance(layer, MeanField)
        layer.noise = noise
        for name in ("weight", "bias"):
            mean = getattr(layer, name)
            variance = None if mean is None else nn.Parameter(torch.full_like(mean.detach(), start))
            layer.register_parameter(name + LOG_VARIANCE, variance)
    return model


def checked_log_variance(name: str, given: float) -> float:
    """Return the logarithm of a variance whose exponential neither overflows nor vanishes, or refuse it."""
    return float(number(name, given, "a number from -50 to 10", lambda value: -50 <= value <= 10))


def mean_field_layers(model: nn.Module) -> dict[str, MeanField]:
    """Return the layers of a model whose weights are distributions, by name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, MeanField)}


def layers_of(model: nn.Module, asker: str) -> dict[str, MeanField]:
    """Return them, or refuse a model that has none."""
    found = mean_field_layers(model)
    if not found:
        raise ConfigurationError(f"{asker} of a model without distributions; expected one from mean_field(model).")
    return found


@contextlib.contextmanager
def drawing(model: nn.Module) -> Iterator[None]:
    """Let such layers draw for a while whatever their mode is."""
    layers = [(layer, layer.always) for layer in mean_field_layers(model).values()]
    # In evaluation torch's transformers read weights past their layers, so that nothing would be drawn.
    fast = torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        for layer, _ in layers:
            layer.always = True
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for layer, before in layers:
            layer.always = before


def _refuse_shared(model: nn.Module, layers: list[nn.Module], names: dict[nn.Module, str]) -> None:
    """Refuse weights that several layers have: drawn in one place, they would be fixed in another."""
    owners: dict[int, list[str]] = {}
    for module in model.modules():
        for parameter in module._parameters.values():  # noqa: SLF001 (parameters() leaves out repeated ones)
            if parameter is not None:
                owners.setdefault(id(parameter), []).append(names[module])
    for layer in layers:
        for parameter in layer.parameters(recurse=False):
            if len(owners[id(parameter)]) > 1:
                raise ConfigurationError(
                    f"{' and '.join(map(repr, owners[id(parameter)]))} share a weight, which would be drawn in each by "
                    "itself; expected layers with weights of their own. Untie them first."
                )
