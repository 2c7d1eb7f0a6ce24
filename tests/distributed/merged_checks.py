"""Adapters that are held by merged weights: several processes come to what one would."""

import warnings

import torch
from torch.nn.parallel import DistributedDataParallel

import holdfast
from tests.adapters.by_hand import adapt, networks
from tests.distributed.problem import share


def adapted():
    torch.manual_seed(0)
    model, _, layers = networks()["mlp"]
    return adapt(model.double(), layers)


def trained(model, share_of, form):
    """Train two tasks on this process's part of each batch, and return the guard."""
    guard = holdfast.Consolidator(model, holdfast.Fisher(), 0.5, form=form, space="merged")
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05)
    guard.attach(optimizer)
    for task in range(2):
        torch.manual_seed(task)
        inputs, labels = torch.randn(8, 4, dtype=torch.float64), torch.randint(3, (8,))
        guard.consolidate([share_of(inputs)])
        for _ in range(3):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(share_of(inputs)), share_of(labels)).backward()
            optimizer.step()
    return guard


def ddp_holds_merged_weights_as_one_process_does(here):
    for form in ("diagonal", "rotated", "kronecker"):
        several, alone = adapted(), adapted()
        guard = trained(DistributedDataParallel(several), lambda t: share((t, t), here.rank, here.size)[0], form)
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", message="torch.distributed runs several processes"
            )  # of which one is alone
            other = trained(alone, lambda t: t, form)
        for one, two in zip(several.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(one, two, rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(guard.penalty(), other.penalty(), rtol=1e-7, atol=1e-12)


CHECKS = [ddp_holds_merged_weights_as_one_process_does]
