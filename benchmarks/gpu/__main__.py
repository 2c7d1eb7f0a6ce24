"""Run the GPU benchmarks named on the command line, or all of them."""

import argparse
from pathlib import Path

import torch

from benchmarks.gpu import billion, fisher, plain_step, training
from holdfast.lab.data.locations import Datasets

BENCHMARKS = {
    "permuted-mnist": training.permuted_mnist,
    "split-cifar": training.split_cifar,
    "fisher": fisher.run,
    "plain-step": plain_step.run,
    "billion-16": billion.with_16_bit_weights,
    "billion-32": billion.with_32_bit_weights,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"any of {', '.join(BENCHMARKS)}; all by default")
    parser.add_argument(
        "--data-dir", type=Path, help="the folder of MNIST and CIFAR (default: as holdfast looks for it)"
    )
    parser.add_argument("--results", type=Path, default=Path("results"), help="where to write (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="a rehearsal on any device: few steps, nothing written")
    options = parser.parse_args()
    unknown = set(options.names) - set(BENCHMARKS)
    if unknown:
        parser.error(f"unknown benchmark {', '.join(sorted(unknown))}; choose from {', '.join(BENCHMARKS)}")
    if not torch.cuda.is_available() and not options.quick:
        parser.error("these benchmarks need a CUDA device; --quick rehearses them without")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    datasets = Datasets(options.data_dir)
    for name in options.names or BENCHMARKS:
        for report in BENCHMARKS[name](datasets, device, options.quick):
            report.show()
            if not options.quick:
                report.write(options.results)


main()
