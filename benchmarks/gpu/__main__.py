"""Run the GPU benchmarks named on the command line, or all of them."""

import argparse
from pathlib import Path

import torch

from anchorhold_lab.data.locations import Datasets
from benchmarks import forms_step
from benchmarks.gpu import billion, billion_forms, fisher, forms, measuring, measuring_peers, plain_step, training

BENCHMARKS = {
    "permuted-mnist": training.permuted_mnist,
    "split-cifar": training.split_cifar,
    "fisher": fisher.run,
    "plain-step": plain_step.run,
    "forms-step": forms_step.on_gpu,
    "forms-products": forms.products,
    "forms-permuted-mnist": forms.permuted_mnist,
    "forms-split-cifar": forms.split_cifar,
    "billion-16": billion.with_16_bit_weights,
    "billion-32": billion.with_32_bit_weights,
    "billion-forms-16": billion_forms.with_16_bit_weights,
    "billion-forms-32": billion_forms.with_32_bit_weights,
    "billion-factors": billion_forms.factors,
    "billion-measuring": measuring.run,
    "measuring-peers": measuring_peers.run,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    known = ", ".join(BENCHMARKS)
    parser.add_argument(
        "names", nargs="*", metavar="name", help=f"any of {known}, or how several of them begin; all by default"
    )
    parser.add_argument(
        "--data-dir", type=Path, help="the folder of MNIST and CIFAR (default: as anchorhold looks for it)"
    )
    parser.add_argument("--results", type=Path, default=Path("results"), help="where to write (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="a rehearsal on any device: few steps, nothing written")
    options = parser.parse_args()
    asked = {given: [name for name in BENCHMARKS if f"{name}-".startswith(f"{given}-")] for given in options.names}
    unknown = [given for given, names in asked.items() if not names]
    if unknown:
        parser.error(f"unknown benchmark {', '.join(unknown)}; choose from {known}")
    if not torch.cuda.is_available() and not options.quick:
        parser.error("these benchmarks need a CUDA device; --quick rehearses them without")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    datasets = Datasets(options.data_dir)
    for name in [name for names in asked.values() for name in names] or BENCHMARKS:
        for report in BENCHMARKS[name](datasets, device, options.quick):
            report.show()
            if not options.quick:
                report.write(options.results)


if __name__ == "__main__":
    main()
