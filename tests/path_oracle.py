"""The measures along the training path, from the paper's formulas and nothing else.

Training here is done the slow, obvious way: the penalty is part of the loss, every gradient is computed for its own
purpose, and all of them are kept until the task is over.
"""

import copy
from dataclasses import dataclass

import torch


@dataclass
class Step:
    """One optimizer step: the weights around it, the task's gradient, and an independent estimate of that."""

    before: dict
    after: dict
    gradient: dict
    independent: dict


def snapshot(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def gradients(loss, model):
    found = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True, allow_unused=True)
    named = zip(model.named_parameters(), found, strict=True)
    return {name: torch.zeros_like(p) if g is None else g.clone() for (name, p), g in named}


def train_task(model, optimizer, loss_function, batches, second_batches, total, anchor, strength):
    """Train one task with the penalty in the loss and return its steps."""
    steps = []
    for batch, second in zip(batches, second_batches, strict=True):
        before = snapshot(model)
        independent = gradients(loss_function(model, second), model)
        loss = loss_function(model, batch)
        gradient = gradients(loss, model)
        penalty = 0.0
        for name, p in model.named_parameters():
            if name in anchor:
                penalty = penalty + strength * (total[name] * (p - anchor[name]) ** 2).sum()
        optimizer.zero_grad()
        (loss + penalty).backward()
        optimizer.step()
        steps.append(Step(before, snapshot(model), gradient, independent))
    return steps


def path_integral(steps, name, kind):
    total = torch.zeros_like(steps[0].before[name])
    for step in steps:
        delta = step.after[name] - step.before[name]
        g, g_independent = step.gradient[name], step.independent[name]
        integrand = {"SI": g, "SIU": g_independent, "SIB": g - g_independent}[kind]
        total = total - integrand * delta
    return total


def rescaled(steps, name, kind, damping, *, clamp_task=True):
    path = path_integral(steps, name, kind)
    moved = steps[-1].after[name] - steps[0].before[name]
    if clamp_task:
        path = torch.where(path > 0, path, torch.zeros_like(path))
    return path / (moved**2 + damping)


def second_moment(steps, name, beta2, alpha, *, normalise):
    """The weighted sum of the paper's table: (1−β₂)/(1−β₂ⁿ) Σ β₂^(n−1−t) (g − α g′)²."""
    n = len(steps)
    total = torch.zeros_like(steps[0].before[name])
    for t, step in enumerate(steps):
        difference = step.gradient[name] - alpha * step.independent[name]
        total = total + (1 - beta2) * beta2 ** (n - 1 - t) * difference**2
    return total / (1 - beta2**n) if normalise else total


def run_tasks(model, make_optimizer, loss_function, tasks, importance_of, strength, *, clamp_total=False, decay=1.0):
    """Train task after task; return the trained model, the totals after each task and each task's steps."""
    model = copy.deepcopy(model)
    total, anchor, history = {}, {}, []
    for batches, second_batches in tasks:
        held = {name: value.clamp(min=0) for name, value in total.items()} if clamp_total else total
        optimizer = make_optimizer(model)
        steps = train_task(model, optimizer, loss_function, batches, second_batches, held, anchor, strength)
        omega = {name: importance_of(steps, name) for name in steps[0].before}
        total = {name: decay * total.get(name, 0.0) + omega[name] for name in omega}
        anchor = snapshot(model)
        history.append((dict(total), steps))
    return model, history
