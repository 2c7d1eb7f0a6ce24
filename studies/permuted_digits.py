"""Permuted digits as several studies have them: the tasks of a seed, and how a network learns them."""

import torch

from anchorhold.digits import load_digits

TASKS, STEPS, BATCH, RATE, WIDTH = 5, 300, 64, 3e-3, 64


class Data:
    """The digits of one seed: 60 % to learn from, 20 % to choose by, 20 % to be judged by; a permutation a task."""

    def __init__(self, seed: int) -> None:
        images, labels = load_digits()
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(images), generator=generator)
        flat = images.flatten(1)[order].float()
        x, y = flat / flat.max(), labels[order]
        first, second = int(0.6 * len(x)), int(0.8 * len(x))
        self.train, self.validation, self.test = (
            (x[part], y[part]) for part in (slice(first), slice(first, second), slice(second, None))
        )
        self.permutations = [torch.randperm(x.shape[1], generator=generator) for _ in range(TASKS)]
