"""What a step costs with each way to pull, for an unprotected one: in one process, turn by turn."""

import itertools
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from anchorhold import Guard, GuardOptions
from anchorhold.forms.rotated import RotatedMatrix
from benchmarks.language.training import batches
from studies.fewer_pulls.scale import Networks, new_guard
from studies.fewer_pulls.ways import Puller, Way, ranks_for
from studies.tolerance.at_scale import held, images, text
from studies.tolerance.at_scale.trials import Setting

KS, SHARES, ROUNDS = (1, 2, 4, 8, 16, 32), (0.9, 0.99, 0.999), 7
FEWER = {"english-python": ((1, 4, 16), (0.99,), 2)}
"""Where a step takes longer."""


def ratios(setting: Setting, networks: Networks, steps: int) -> list[dict[str, Any]]:
    """Return the time of a step of each way over that of an unprotected one; each case takes so many steps a round."""
    ks, shares, rounds = FEWER.get(setting.name, (KS, SHARES, ROUNDS))
    subject = networks.subject(setting, setting.seeds[0])
    cases: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {"unprotected": (_nothing, _nothing)}
    optimizer = subject.optimizer("SGD")
    step = one_step(subject, optimizer)
    guards: list[Guard] = []
    for way in [Way("every", k) for k in ks]:
        guard = new_guard(subject, 1e-3, way)
        if guards:  # what was measured once
            guard.load_state_dict(guards[0].state_dict())
        else:
            guard.consolidate(subject.old.measured, forward=subject.old.forward)
        guards.append(guard)
        cases[way.text] = partial(guard.attach, optimizer), guard.detach
    first = guards[0]
    for way in [Way("leading", share=share) for share in shares]:
        cases[way.text] = _with_puller(Puller(first, optimizer, way), optimizer)
    seconds: dict[str, list[float]] = {case: [] for case in cases}
    for _ in range(rounds + 1):
        for case, (begin, end) in cases.items():
            begin()
            seconds[case].append(held.timed(lambda: [step() for _ in range(steps)]))
            end()
    medians = {case: statistics.median(found[1:]) / steps for case, found in seconds.items()}
    rows = [
        {"setting": setting.name, "case": case, "ratio": own / medians["unprotected"], "seconds": own}
        for case, own in medians.items()
    ]
    for share in shares:
        matrices = first.held.matrices.values()
        ranks = {m.block.name: [m.block.size, ranks_for(m, share)] for m in matrices if isinstance(m, RotatedMatrix)}
        rows.append({"setting": setting.name, "ranks": share, "layers": ranks})
    return rows


def on_a_processor(width: int, rounds: int = 3) -> list[dict[str, Any]]:
    """Return the same of the library's keyword on one core, by its time alone; what the numbers are changes nothing."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))
    x, y = torch.rand(256, 784), torch.randint(10, (256,))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)
    guard = Guard(model, "EWC", strength=1e-3, form="rotated", monitors=(), options=GuardOptions(implicit=True))
    guard.consolidate([x[:64]])
    seconds: dict[int, list[float]] = {k: [] for k in (0, 1, 4, 8, 16)}
    for _, (k, found) in itertools.product(range(rounds), seconds.items()):
        steps = max(4, k)
        if k:
            guard.options.pull_every = k
            guard.attach(optimizer)
        began = time.thread_time()
        for _ in range(steps):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        found.append((time.thread_time() - began) / steps)
        guard.detach()
    plain = statistics.median(seconds[0])
    setting = f"784-{width}-{width}-10, one core"
    return [
        {
            "setting": setting,
            "case": Way("every", k).text if k else "unprotected",
            "ratio": statistics.median(found) / plain,
            "seconds": statistics.median(found),
        }
        for k, found in seconds.items()
    ]


def _nothing() -> None:
    pass


def _with_puller(puller: Puller, optimizer: torch.optim.Optimizer) -> tuple[Callable[[], object], Callable[[], object]]:
    hooks = []

    def begin() -> None:
        hooks.append(optimizer.register_step_post_hook(lambda *_: puller.after_step()))

    return begin, lambda: hooks.pop().remove()


def one_step(subject: held.Subject, optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    """Return a step of the second task, of the same batch each time."""
    if isinstance(subject, text.Text):
        own = subject.sizes
        piece = next(batches(subject.corpus.of("python", "train"), 1, own.python_batch, own.context, 0, "timing"))

        def loss() -> torch.Tensor:
            return subject.device.loss(subject.model, piece)
    else:
        assert isinstance(subject, images.Pictures)
        task, batch = subject.second, subject.setting.batch
        x, y = task.train.x[:batch], task.train.y[:batch]

        def loss() -> torch.Tensor:
            return F.cross_entropy(subject.model(x, task.head), y)

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return step
