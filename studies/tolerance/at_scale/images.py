"""The settings of pictures: Permuted MNIST and Split CIFAR, two tasks each."""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anchorhold.seeding import derive_seed, generator_for
from anchorhold.whole_files import read_tensors, write_tensors
from anchorhold_lab.data import Dataset, Images
from anchorhold_lab.networks import MultiHead, cnn, mlp
from anchorhold_lab.scenarios import Samples, Task, permuted, split_cifar
from studies.tolerance.at_scale.held import Judged, Old
from studies.tolerance.at_scale.trials import Setting

SHAPES = {"MNIST": (1, 28, 28, 10), "CIFAR-10": (3, 32, 32, 10), "CIFAR-100": (3, 32, 32, 100)}


def random_datasets(count: int = 200) -> dict[str, Dataset]:
    """Return noise in the place of pictures, for a rehearsal."""
    generator = torch.Generator().manual_seed(0)

    def images(*shape: int) -> Images:
        *size, classes = shape
        pixels = torch.randint(0, 256, (count, *size), generator=generator, dtype=torch.uint8)
        return Images(pixels, torch.arange(count) % classes, classes)

    return {name: Dataset(name, images(*shape), images(*shape)) for name, shape in SHAPES.items()}


class Pictures:
    """One seed of a setting: its tasks, and the network that has learned the first of them."""

    def __init__(self, setting: Setting, seed: int, datasets: Mapping[str, Dataset], device: torch.device) -> None:
        self.setting, self.seed, self.device = setting, seed, device
        self.is_cifar = setting.name == "split-cifar"
        if self.is_cifar:
            scenario = split_cifar(datasets["CIFAR-10"], datasets["CIFAR-100"], 2)
        else:
            scenario = permuted(datasets["MNIST"], 2, seed=seed)
        self.first, self.second = scenario.to(device).tasks
        torch.manual_seed(derive_seed(seed, "model"))  # dropout draws from there too
        network = cnn(heads=2) if self.is_cifar else mlp(hidden=setting.hidden)
        network.initialise(generator_for(seed, "weights", 0))
        self.model: MultiHead = network.to(device)

    def learn_first(self, path: Path) -> None:
        """Learn the first task, and write the network down."""
        optimizer = torch.optim.Adam(self.model.parameters(), 1e-3)
        for _ in self._steps(self.first, optimizer, self.setting.first_epochs, "first"):
            pass
        write_tensors(path, {name: tensor.cpu() for name, tensor in self.model.state_dict().items()}, {})

    def load(self, path: Path) -> None:
        """Go back to the network as it was after the first task."""
        tensors, _ = read_tensors(path)
        self.model.load_state_dict(tensors)

    @property
    def protect(self) -> str | None:
        """What is held: all but heads of tasks' own."""
        return "body.*" if self.is_cifar else None

    @property
    def old(self) -> Old:
        """Inputs of the first task, to measure importance on, to keep and to judge by."""
        drawn = generator_for(self.seed, "measured")
        chosen = torch.randperm(len(self.first.stored_train), generator=drawn)[: self.setting.measured]
        train, test = self.first.train, self.first.test
        order = torch.randperm(len(test), generator=generator_for(self.seed, "kept"))
        kept, fresh = order[: self.setting.kept], order[self.setting.kept :][: self.setting.fresh]
        forward = partial(_through, head=self.first.head)
        measured = [
            (part, train.y[chosen.to(self.device)][i * 250 :][:250])
            for i, part in enumerate(train.x[chosen.to(self.device)].split(250))
        ]
        return Old(
            measured,
            list(test.x[kept.to(self.device)].split(128)),
            list(test.x[fresh.to(self.device)].split(128)),
            forward,
        )

    def optimizer(self, name: str) -> torch.optim.Optimizer:
        """Return the optimiser of the second task."""
        rate = self.setting.rates[name]
        if name == "SGD":
            return torch.optim.SGD(self.model.parameters(), rate, momentum=0.9)
        return torch.optim.Adam(self.model.parameters(), rate)

    def learn_second(self, optimizer: torch.optim.Optimizer) -> None:
        """Learn the second task."""
        for _ in self._steps(self.second, optimizer, self.setting.epochs, "second"):
            pass

    @torch.no_grad()
    def judged(self) -> Judged:
        """Return the test accuracies, of the old task and of the new, in per cent."""
        self.model.eval()
        return Judged(*(100 * self._accuracy(task) for task in (self.first, self.second)))

    def _accuracy(self, task: Task) -> float:
        test = task.test
        right = [
            self.model(x, task.head).argmax(-1) == y
            for x, y in zip(test.x.split(2000), test.y.split(2000), strict=True)
        ]
        return float(torch.cat(right).float().mean())

    def _steps(self, task: Task, optimizer: torch.optim.Optimizer, epochs: int, purpose: str) -> Iterator[int]:
        samples: Samples = task.train
        torch.manual_seed(derive_seed(self.seed, purpose))
        self.model.train()
        generator = generator_for(self.seed, "order", purpose)
        for _ in range(epochs):
            order = torch.randperm(len(samples), generator=generator).to(self.device)
            for step, chosen in enumerate(order.split(self.setting.batch)):
                optimizer.zero_grad()
                F.cross_entropy(self.model(samples.x[chosen], task.head), samples.y[chosen]).backward()
                optimizer.step()
                yield step


def _through(model: nn.Module, inputs: Tensor, head: int) -> Tensor:
    logits: Tensor = model(inputs, head)
    return logits
