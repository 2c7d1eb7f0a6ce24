"""Where the time of a recorded step goes, kernel by kernel."""

import torch
from torch.profiler import ProfilerActivity, profile

from anchorhold_lab.training.fast import FastRuns

STEPS = 12
LINES = 30


def kernel_table(engine: FastRuns) -> list[str]:
    """Return a table of the kernels of one step of all runs; the steps are taken after training, and spoil it."""
    recording = engine._recordings.get(False)  # of steps as most are, without samples' own gradients
    if recording is None:
        return ["| (no GPU) |"]
    engine._clock.set(0, 0)
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        recording.take_steps(STEPS)
        torch.cuda.synchronize()
    kernels = sorted(found.key_averages(), key=lambda kernel: -kernel.self_device_time_total)
    kernels = [kernel for kernel in kernels if kernel.self_device_time_total > 0]
    total = sum(kernel.self_device_time_total for kernel in kernels) / STEPS
    count = sum(kernel.count for kernel in kernels) / STEPS
    lines = ["| µs | times | kernel |", "|---|---|---|", f"| {total:.1f} | {count:.1f} | all, one step of all runs |"]
    for kernel in kernels[:LINES]:
        name = kernel.key.replace("|", "/")[:100]
        lines.append(f"| {kernel.self_device_time_total / STEPS:.1f} | {kernel.count / STEPS:.1f} | `{name}` |")
    return lines
