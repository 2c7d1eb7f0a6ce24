"""Coresets: a few samples of every task, held out of training, that the posterior looks at just before it predicts.

Nguyen et al. 2018, arXiv 1710.10628, algorithm 1: beside the posterior that goes on from task to task, and has not seen
them, another is made from it for predictions alone.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from holdfast.errors import BatchError, NotFiniteError
from holdfast.settings import number, whole_number
from holdfast.variational.gaussians import Gaussian, kl
from holdfast.variational.mean_field import LOG_VARIANCE, mean_field_layers

Loss = Callable[[Tensor, Tensor], Tensor]


def refined(
    model: nn.Module,
    batches: Sequence[tuple[Any, ...]],
    *,
    epochs: int = 100,
    learning_rate: float = 0.001,
    loss: Loss = F.cross_entropy,
) -> dict[str, Tensor]:
    r"""Return the weights of a posterior that has looked at a coreset too; the model stays as it is.

    They minimise :math:`\mathbb E_q[-\log p] + \mathrm{KL}(q\,\|\,q_t)/K` over the coreset's K samples, by Adam,
    beginning at the model's own :math:`q_t`.

    >>> weights = holdfast.refined(model, coreset)
    >>> log_probabilities = holdfast.predictive(model, x, weights=weights)

    Args:
        model: one that :func:`holdfast.mean_field` has changed, in any mode.
        batches: ``(inputs..., targets)``; all but the last go into the model.
        epochs: how often they are looked at.
        learning_rate: of Adam.
        loss: ``loss(outputs, targets)``, the mean over samples.
    """
    rounds = whole_number("epochs", epochs, "a whole number, 0 or more", least=0)
    rate = number("learning_rate", learning_rate, "a number above 0", lambda given: given > 0)
    given = [tuple(batch) for batch in batches]
    count = sum(len(targets) for *_, targets in given)
    if not count:
        raise BatchError("refined() was given no samples; expected batches of (inputs, targets).")
    own = {name: p for name, p in model.named_parameters() if p.requires_grad}
    prior = {name: p.detach().clone() for name, p in own.items()}
    weights = {name: p.clone().requires_grad_() for name, p in prior.items()}
    optimizer = torch.optim.Adam(weights.values(), lr=rate)
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.train()
        with torch.enable_grad():
            for _ in range(rounds):
                for *inputs, targets in given:
                    optimizer.zero_grad()
                    own_loss = loss(functional_call(model, weights, tuple(inputs)), targets)
                    (own_loss + _away(model, weights, prior) / count).backward()
                    optimizer.step()
    finally:
        for module, mode in modes:
            module.training = mode
    found = {name: weight.detach() for name, weight in weights.items()}
    if not all(bool(weight.isfinite().all()) for weight in found.values()):
        raise NotFiniteError(
            f"Training on a coreset of {count} samples at learning_rate={rate:g} ended with a NaN or an infinity. The "
            "model is as it was. Expected a smaller rate."
        )
    return found


def _away(model: nn.Module, weights: dict[str, Tensor], prior: dict[str, Tensor]) -> Tensor:
    """Return KL(q‖q_t) over all layers."""
    terms = []
    for path, layer in mean_field_layers(model).items():
        for name in layer.gaussians():
            place = f"{path}.{name}".lstrip(".")
            if place in weights:
                q, p = (Gaussian(these[place], these[place + LOG_VARIANCE]) for these in (weights, prior))
                terms.append(kl(q, p))
    return torch.stack(terms).sum()
