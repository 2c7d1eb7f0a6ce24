"""Two tasks with DistributedDataParallel, every rank on its own share of the data.

Run it with ``torchrun --nproc-per-node=2 examples/ddp_loop.py``. Lines that end in ``# anchorhold`` are all that
protection adds to the loop. SOS takes the ranks' gradients as its independent estimates, so it is unbiased without a
second batch.
"""

import gc

import torch
from torch import distributed, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import anchorhold  # anchorhold


def make_task(seed: int) -> TensorDataset:
    """Return inputs that speak through ten features of their own, labelled by a random linear rule."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.zeros(1024, 20)
    x[:, 10 * seed : 10 * seed + 10] = torch.randn(1024, 10, generator=generator)
    return TensorDataset(x, (x @ torch.randn(20, 5, generator=generator)).argmax(1))


def accuracy(model: nn.Module, task: TensorDataset) -> float:
    """Return the part of a task's inputs that the model classifies right."""
    x, y = task.tensors
    with torch.no_grad():
        return float((model(x).argmax(1) == y).float().mean())


def main() -> None:
    """Train one task after the other, and tell how much of the first is left."""
    distributed.init_process_group("gloo")
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    # With 2 the first task ends at 94 %, with 20 and 200 at 98, and the second at 98 with all of them.
    guard = anchorhold.Guard(model, anchorhold.SOS(alpha="unbiased"), strength=20.0, from_scratch=True)  # anchorhold
    guard.attach(optimizer)  # anchorhold
    guard.gradients.ranks(samples=32)  # anchorhold

    tasks = [make_task(seed) for seed in (0, 1)]
    for task in tasks:
        sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(task)
        loader = DataLoader(task, batch_size=32, sampler=sampler)
        for epoch in range(5):
            sampler.set_epoch(epoch)
            for x, y in loader:
                optimizer.zero_grad()
                cross_entropy(model(x), y).backward()
                optimizer.step()
        guard.consolidate()  # anchorhold
    if distributed.get_rank() == 0:
        scores = [accuracy(network, task) for task in tasks]
        print(f"accuracy on the first task {scores[0]:.1%}, on the second {scores[1]:.1%}")
    distributed.barrier()  # gloo may abort a rank whose neighbour has left before it
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # frees the process group: a gloo thread that outlives the interpreter may abort it
