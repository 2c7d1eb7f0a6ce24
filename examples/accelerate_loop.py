"""One's own training loop with Accelerate, two tasks, and a network that keeps the first.

The lines that protect it are marked.
"""

import tempfile

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import anchorhold  # added
from anchorhold.integrations.accelerate import prepare_guard  # added


def task(place: int) -> TensorDataset:
    """Return points of two classes; each task uses ten of the inputs, five of which the other uses too."""
    generator = torch.Generator().manual_seed(place)
    inputs = torch.zeros(512, 15)
    used = inputs[:, 5 * place : 5 * place + 10]
    used.normal_(generator=generator)
    return TensorDataset(inputs, (used @ torch.randn(10, generator=generator) > 0).long())


def accuracy(model: nn.Module, data: TensorDataset) -> float:
    """Return the share of points that are classified rightly."""
    inputs, labels = data.tensors
    with torch.no_grad():
        return (model(inputs).argmax(1) == labels).float().mean().item()


def train(strength: float) -> list[float]:
    """Learn two tasks and return the accuracy on both at the end."""
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = nn.Sequential(nn.Linear(15, 100), nn.ReLU(), nn.Linear(100, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    tasks = [task(place) for place in range(2)]
    loaders = [DataLoader(data, batch_size=16, shuffle=True) for data in tasks]
    model, optimizer, *loaders = accelerator.prepare(model, optimizer, *loaders)

    guard = anchorhold.Guard(model, anchorhold.SOS(), strength=strength, from_scratch=True)  # added
    prepare_guard(accelerator, guard, optimizer)  # added: attaches it, and keeps it with the accelerator's checkpoints

    with tempfile.TemporaryDirectory() as folder:
        for loader in loaders:
            for _ in range(10):
                for inputs, labels in loader:
                    with accelerator.accumulate(model):
                        accelerator.backward(nn.functional.cross_entropy(model(inputs), labels))
                        optimizer.step()
                        optimizer.zero_grad()
            guard.consolidate(loader)  # added: the end of a task
            accelerator.save_state(folder)
    return [accuracy(model, data) for data in tasks]


def main() -> None:
    """Compare the two tasks with and without protection.

    Of 3, 30 and 300, 30 is the strength by which both are known about alike.
    """
    for name, strength in (("fine-tuned:", 0.0), ("and held:", 30.0)):
        first, second = train(strength)
        print(f"{name:<12} first task {first:.2f}, second task {second:.2f}")


if __name__ == "__main__":
    main()
