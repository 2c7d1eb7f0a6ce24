"""The exact Fisher information by other means: a loop of single backward passes, BackPACK, nngeometry."""

import copy
import warnings
from collections.abc import Callable

import torch
from backpack import backpack, extend
from backpack.extensions import DiagGGNExact
from nngeometry.layercollection import LayerCollection
from nngeometry.metrics import FIM
from nngeometry.object import PMatDiag
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

Importance = dict[str, Tensor]


def one_by_one(model: nn.Module, images: Tensor) -> Importance:
    """Go through one image and one label at a time, as the original implementations do."""
    parameters = dict(model.named_parameters())
    total = {name: torch.zeros_like(p) for name, p in parameters.items()}
    for image in images:
        log_q = model(image.unsqueeze(0)).log_softmax(-1)[0]
        for label_score in log_q:
            gradients = torch.autograd.grad(label_score, list(parameters.values()), retain_graph=True)
            weight = float(label_score.detach().exp())
            for name, gradient in zip(parameters, gradients, strict=True):
                total[name].addcmul_(gradient, gradient, value=weight)
    return {name: value / len(images) for name, value in total.items()}


def by_backpack(model: nn.Module, images: Tensor, batch: int) -> Callable[[], Importance]:
    """Return BackPACK's ``DiagGGNExact`` of the mean cross-entropy: the exact Fisher, summed up over batches."""
    # BackPACK hooks into the modules that it extends, so it gets a copy.
    extended = extend(copy.deepcopy(model))
    loss_function = extend(nn.CrossEntropyLoss(reduction="sum"))
    labels = torch.zeros(len(images), dtype=torch.long)  # the GGN of cross-entropy does not depend on them

    def measure() -> Importance:
        total: Importance = {}
        for part, targets in zip(images.split(batch), labels.split(batch), strict=True):
            loss = loss_function(extended(part), targets)
            with backpack(DiagGGNExact()), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                loss.backward()
            for name, parameter in extended.named_parameters():
                total[name] = total[name].add_(parameter.diag_ggn_exact) if name in total else parameter.diag_ggn_exact
                parameter.grad = parameter.diag_ggn_exact = None
        return {name: value / len(images) for name, value in total.items()}

    return measure


def by_nngeometry(model: nn.Module, images: Tensor, batch: int) -> Callable[[], Importance]:
    """Return nngeometry's diagonal FIM, whose "classif_logits" is the exact expectation over labels."""
    loader = DataLoader(TensorDataset(images), batch_size=batch)
    own = copy.deepcopy(model)
    layers = LayerCollection.from_model(own)

    def measure() -> Importance:
        diagonal = FIM(own, loader, PMatDiag, variant="classif_logits", layer_collection=layers).get_diag()
        found, start = {}, 0
        for name, parameter in own.named_parameters():
            found[name] = diagonal[start : start + parameter.numel()].view_as(parameter)
            start += parameter.numel()
        return found

    return measure
