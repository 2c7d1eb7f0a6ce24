"""Coresets: a few samples of every task, held out of training, that the posterior looks at just before it predicts.

Nguyen et al. 2018, arXiv 1710.10628, algorithm 1: beside the posterior that goes on from task to task, and has not seen
them, another is made from it for predictions alone.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from anchorhold.errors import BatchError, ConfigurationError, NotFiniteError, shortened
from anchorhold.settings import number, whole_number
from anchorhold.variational.gaussians import Gaussian, kl
from anchorhold.variational.mean_field import LOG_VARIANCE, layers_of, mean_field_layers

Loss = Callable[[Tensor, Tensor], Tensor]


def k_center(inputs: Tensor, count: int, first: int = 0) -> Tensor:
    r"""Return which samples make a coreset that is near to all others: each the farthest from those before it.

    The greedy K-center of Gonzalez 1985, which Nguyen et al. 2018 (arXiv 1710.10628) choose coresets by beside random
    ones. No sample is farther from its nearest in the coreset than twice what the best coreset of this size could do.

    >>> chosen = anchorhold.variational.k_center(x, 200)
    >>> coreset = x[chosen], y[chosen]

    Args:
        inputs: ``[N, ...]``; distances are Euclidean ones, between inputs as they are.
        count: how many samples.
        first: the one to begin with.
    """
    rows = _rows(inputs)
    expected = f"a whole number from 1 to the {len(inputs)} samples that there are"
    many = whole_number("count", count, expected, least=1)
    place = whole_number("first", first, f"the number of a sample, 0 to {len(inputs) - 1}", least=0)
    if many > len(inputs) or place >= len(inputs):
        raise ConfigurationError(f"count={many} and first={place} of {len(inputs)} samples; expected {expected}.")
    chosen = [place]
    nearest = (rows - rows[place]).square().sum(1)
    for _ in range(many - 1):
        nearest[chosen[-1]] = -1.0  # taken, which of equal samples none would be otherwise
        chosen.append(int(nearest.argmax()))
        nearest = torch.minimum(nearest, (rows - rows[chosen[-1]]).square().sum(1))
    return torch.tensor(chosen, device=inputs.device)


def _rows(inputs: Tensor) -> Tensor:
    """Return inputs ``[N, ...]`` as vectors whose squares neither overflow nor vanish, or say what they are instead."""
    if not isinstance(inputs, Tensor) or inputs.ndim < 2 or inputs.is_complex() or not bool(inputs.isfinite().all()):
        tensor = isinstance(inputs, Tensor)
        what = f"shape {tuple(inputs.shape)} and {inputs.dtype}" if tensor else f"type {type(inputs).__name__}"
        raise BatchError(f"k_center() was given inputs of {what}; expected finite real numbers, [N, ...].")
    if not inputs.numel():
        raise BatchError(
            f"k_center() was given inputs of shape {tuple(inputs.shape)}, in which there are no numbers; expected "
            "samples, [N, ...]."
        )
    rows = inputs.detach().flatten(1).to(torch.promote_types(inputs.dtype, torch.float32))
    largest = rows.abs().max()
    # By a power of two, which rounds nothing: where no square overflows anyway, the same samples are chosen.
    return rows / (largest / (2 * torch.frexp(largest).mantissa)) if bool(largest > 0) else rows


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

    >>> weights = anchorhold.variational.refined(model, coreset)
    >>> log_probabilities = anchorhold.variational.predictive(model, x, weights=weights)

    Args:
        model: one that :func:`anchorhold.variational.mean_field` has changed, in any mode. What is frozen in
            it stays as it is.
        batches: ``(inputs..., targets)``; all but the last go into the model.
        epochs: how often they are looked at.
        learning_rate: of Adam.
        loss: ``loss(outputs, targets)``, the mean over samples.
    """
    rounds = whole_number("epochs", epochs, "a whole number, 0 or more", least=0)
    rate = number("learning_rate", learning_rate, "a number above 0", lambda given: given > 0)
    if not callable(loss):
        raise ConfigurationError(
            f"loss={shortened(loss)}: expected a function loss(outputs, targets) that returns their mean loss, such as "
            "torch.nn.functional.cross_entropy."
        )
    layers_of(model, "refined()")
    given = _checked(batches)
    count = sum(len(targets) for *_, targets in given)
    prior = {name: p.detach().clone() for name, p in model.named_parameters()}
    weights = {name: prior[name].clone().requires_grad_() for name, p in model.named_parameters() if p.requires_grad}
    if not weights:
        raise ConfigurationError("refined() of a model that is all frozen; expected weights that can be trained.")
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}  # batch norms change theirs
    optimizer = torch.optim.Adam(weights.values(), lr=rate)
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.train()
        with torch.enable_grad():
            for _ in range(rounds):
                for *inputs, targets in given:
                    optimizer.zero_grad()
                    own_loss = loss(functional_call(model, weights | buffers, tuple(inputs)), targets)
                    (own_loss + _away(model, prior | weights, prior) / count).backward()
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
            q, p = (Gaussian(these[place], these[place + LOG_VARIANCE]) for these in (weights, prior))
            terms.append(kl(q, p))
    return torch.stack(terms).sum()


def _checked(batches: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Return the batches of a coreset, or say what one of them is in the place of inputs and targets."""
    if not isinstance(batches, Iterable):
        raise BatchError(f"refined() was given {shortened(batches)}; expected batches of (inputs, targets).")
    given = list(batches)
    if not given:
        raise BatchError("refined() was given no samples; expected batches of (inputs, targets).")
    for place, batch in enumerate(given):
        if not isinstance(batch, tuple | list) or len(batch) < 2:
            many = f" of {len(batch)}" if isinstance(batch, tuple | list) else ""
            raise BatchError(
                f"Batch {place} of the coreset is a {type(batch).__name__}{many}; expected (inputs, targets), or "
                "(inputs, ..., targets) where the model takes several."
            )
        targets = batch[-1]
        if not isinstance(targets, Tensor) or not targets.ndim or not len(targets):
            what = f"shape {tuple(targets.shape)}" if isinstance(targets, Tensor) else f"type {type(targets).__name__}"
            raise BatchError(
                f"Batch {place} of the coreset has targets of {what}; expected a tensor with one for each sample."
            )
        if any(isinstance(part, Tensor) and bool(part.isnan().any()) for part in batch):
            raise NotFiniteError(
                f"Batch {place} of the coreset has a NaN in it; expected numbers. The model is as it was."
            )
    return [tuple(batch) for batch in given]
