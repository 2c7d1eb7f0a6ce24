"""Adapters that are held by merged weights: several processes come to what one would."""

import warnings

import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import anchorhold
from tests.adapters.by_hand import adapt, networks
from tests.distributed.problem import share


def adapted():
    torch.manual_seed(0)
    model, _, layers = networks()["mlp"]
    return adapt(model.double(), layers)


def trained(model, share_of, form):
    """Train two tasks on this process's part of each batch, and return the guard."""
    guard = anchorhold.Guard(
        model, anchorhold.Fisher(), strength=0.5, form=form, options=anchorhold.GuardOptions(space="merged")
    )
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


def fsdp_averages_what_adapters_add(here):
    """Each process has some rows of the factors, and all of them are needed for what they come to."""
    mesh = init_device_mesh("cpu", (here.size,))
    for std in (0.0, 0.5):
        torch.manual_seed(0)
        model = get_peft_model(nn.Sequential(nn.Linear(5, 6), nn.Linear(6, 3)), LoraConfig(r=2, target_modules=["0"]))
        factors = [p for p in model.parameters() if p.requires_grad]
        with torch.no_grad():
            factors[1].normal_(std=std)
        guard = anchorhold.Guard(fully_shard(model, mesh=mesh), "L2", strength=1.0)
        guard.consolidate()
        then = [p.full_tensor() for p in guard.parameters.values()]
        with torch.no_grad():
            for p in guard.parameters.values():
                p.mul_(1.5).add_(0.3)
        now = [p.full_tensor() for p in guard.parameters.values()]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            guard.average(0.7)
        a, b = (p.full_tensor() for p in guard.parameters.values())
        u, sigma, v = torch.linalg.svd(0.7 * now[1] @ now[0] + 0.3 * then[1] @ then[0], full_matrices=False)
        torch.testing.assert_close(b @ a, u[:, :2] * sigma[:2] @ v[:2])


CHECKS = [ddp_holds_merged_weights_as_one_process_does, fsdp_averages_what_adapters_add]
