"""One LightningModule learns handwritten digits, then the same digits with their pixels shuffled, and keeps both.

The lines marked ``# anchorhold`` are what anchorhold adds; without them, most of the first task is forgotten.
"""

import logging
import warnings

import lightning.pytorch as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import anchorhold  # anchorhold
from anchorhold.digits import load_digits
from anchorhold.integrations.lightning import AnchorholdCallback  # anchorhold


class Classifier(L.LightningModule):
    """A small network for images of 64 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        return self.net(images)

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> torch.Tensor:
        """Return the loss."""
        images, labels = batch
        return nn.functional.cross_entropy(self(images), labels)

    def test_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> None:
        """Log the accuracy."""
        images, labels = batch
        self.log("accuracy", (self(images).argmax(1) == labels).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Train with Adam."""
        return torch.optim.Adam(self.parameters(), lr=3e-3)


def task(pixels: torch.Tensor) -> tuple[DataLoader, DataLoader]:
    """Return the digits with their pixels in this order, for training and for testing."""
    images, labels = load_digits()
    data = TensorDataset(images.flatten(1)[:, pixels], labels)
    train, test = torch.utils.data.random_split(data, [0.8, 0.2], torch.Generator().manual_seed(0))
    return DataLoader(train, batch_size=32, shuffle=True), DataLoader(test, batch_size=512)


def main() -> None:
    """Train on one task after the other, and look at both each time."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", module="lightning")  # advice about workers, and its own deprecations
    L.seed_everything(0, verbose=False)
    module = Classifier()
    tasks = [task(torch.arange(64)), task(torch.randperm(64))]
    # Of 0.1, 1 and 10 the strength by which both tasks are known alike: 83 and 94 %, 93 and 91 %, 95 and 82 %.
    guard = anchorhold.Guard(module, anchorhold.SI(damping=0.01), strength=1.0, from_scratch=True)  # anchorhold
    for train, _ in tasks:
        trainer = L.Trainer(
            max_epochs=10,
            callbacks=[AnchorholdCallback(guard)],  # anchorhold
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, train)
        for number, (_, test) in enumerate(tasks, start=1):
            accuracy = trainer.test(module, test, verbose=False)[0]["accuracy"]
            print(f"task {number}: {accuracy:.3f}")


if __name__ == "__main__":
    main()
