"""Every number that the paper prints about its experiments, and a few of others', with the place where each stands."""

from dataclasses import dataclass

from anchorhold_lab.report import Cell, Measured


@dataclass(frozen=True)
class Published:
    """A number of the paper: accuracies and errors in per cent, everything else as printed."""

    mean: float
    error: float | None = None
    place: str = "Table 1"
    relation: str = ""
    """``<`` or ``>`` where the paper gives a bound alone, ``≈`` where it says "around" or "roughly"."""

    def __str__(self) -> str:
        return f"{self.relation}{self.mean:g}" if self.error is None else f"{self.mean:.1f} ± {self.error:.1f}"

    def cell(self) -> Cell:
        """Return what stands in a table: a number that can be sorted, unless the paper gives a bound alone."""
        if self.relation:
            return str(self)
        decimals = len(f"{self.mean:g}".partition(".")[2]) if self.error is None else 1
        return Measured(self.mean, self.error, decimals=decimals)


_LOGITS = 'appendix "MAS based on logits"'
_BASELINES = 'appendix "Relative Performance of Regularisation Methods"'
_MORE = 'appendix "More Experiments and Plots"'
_SI = 'section "Empirical Investigation of SI"'
_MAS = 'section "Empirical Relation of MAS and Fisher"'

ACCURACIES: dict[tuple[str, str], Published] = {
    ("P-MNIST", "SI"): Published(97.2, 0.1),
    ("P-MNIST", "SIB"): Published(97.2, 0.1),
    ("P-MNIST", "SIU"): Published(96.3, 0.1),
    ("P-MNIST", "SOS"): Published(97.3, 0.1),
    ("P-MNIST", "SI(2048)"): Published(96.2, 0.1),
    ("P-MNIST", "SOS(2048)"): Published(97.1, 0.1),
    ("P-MNIST", "MAS"): Published(97.3, 0.1),
    ("P-MNIST", "AF"): Published(97.4, 0.1),
    ("P-MNIST", "sqrtFisher"): Published(97.1, 0.2),
    ("P-MNIST", "EWC"): Published(97.1, 0.2),
    ("P-MNIST", "MAS-logits"): Published(97.2, 0.1, _LOGITS),
    ("P-MNIST", "L2-growing"): Published(88.0, None, _BASELINES),
    ("P-MNIST", "magnitude"): Published(95.0, None, _BASELINES, "<"),
    ("P-MNIST", "SI, long training"): Published(98.0, None, _BASELINES),
    ("CIFAR", "SI"): Published(74.4, 0.2),
    ("CIFAR", "SIB"): Published(75.1, 0.1),
    ("CIFAR", "SIU"): Published(72.5, 0.3),
    ("CIFAR", "SOS"): Published(74.1, 0.2),
    ("CIFAR", "SI(2048)"): Published(70.0, 0.3),
    ("CIFAR", "SOS(2048)"): Published(74.4, 0.1),
    ("CIFAR", "MAS"): Published(73.7, 0.2),
    ("CIFAR", "AF"): Published(73.4, 0.1),
    ("CIFAR", "sqrtFisher"): Published(73.5, 0.2),
    ("CIFAR", "EWC"): Published(73.1, 0.2),
    ("CIFAR", "MAS-logits"): Published(73.9, 0.2, _LOGITS),
}
"""Average accuracies by benchmark and algorithm."""

# Of MAS and MASX the paper also gives accuracies on validation data, 74.2 ± 0.7 and 74.1 ± 0.5 on CIFAR (appendix
# "Hyperparameters"). They are of other samples than the table's, so they don't stand beside it.

ELSEWHERE: dict[tuple[str, str], Published] = {
    ("CIFAR", "FROMP, which stores images"): Published(76.2, None, "the README of its code"),
}
"""What others report of other methods on the paper's benchmarks. FROMP: Pan et al. 2020 (arXiv 2004.14070)."""

KRONECKER_LAPLACE = Published(90.0, None, "Ritter, Botev and Barber 2018 (arXiv 1805.07810)", ">")
"""The average accuracy over 50 permutations of MNIST, with a network and a training of their own."""

BIAS_TO_UNBIASED = (Published(5.0, None, _SI), Published(6.0, None, _SI))
"""SI's bias is 5-6 times its unbiased part."""

LARGE_BATCH_LOSS = {"P-MNIST": Published(1.0, None, _SI, "≈"), "CIFAR": Published(4.0, None, _SI, "≈")}
"""What SI loses with batches of 2048, in points."""

SI_WITH_SOS = {
    "P-MNIST": Published(1.0, None, _SI, "≈"),
    "CIFAR, task 1": Published(0.9, None, _SI, "≈"),
    "CIFAR, task 1, before rescaling": Published(0.99, None, _SI, "≈"),
}
MAS_WITH_MASX = Published(1.0, None, _MAS, "≈")
MAS_WITH_AF = Published(1.0, None, _MAS, "≈")
MAS_WITH_ROOT_FISHER = {"P-MNIST": Published(0.9, None, _MAS, "≈"), "CIFAR": Published(1.0, None, _MAS, "≈")}

WITHOUT_TOP = {
    "SIU": Published(0.5, None, _MORE),
    "SI": Published(0.9, None, _MORE),
    "SIB": Published(0.9, None, _MORE),
}
"""Correlations with SOS on CIFAR's first task, before rescaling, without the 5 % of weights with the highest SIU."""

LOGITS_P_VALUE = Published(0.4, None, _LOGITS, ">")
"""Of a t-test between MAS on probabilities and on logits, ten repetitions, on either benchmark."""
