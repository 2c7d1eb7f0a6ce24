"""A report of the size and kind that the paper's has, with made-up numbers."""

import numpy as np

from anchorhold_lab.report import Figure, Measured, Report, Section, Table, Text, Verdict, colour, ink, label

ALGORITHMS = ("SI", "SIB", "SIU", "SOS", "SI(2048)", "SOS(2048)", "MAS", "AF", "sqrtFisher", "EWC")
POINTS = 100_000


def accuracies():
    random = np.random.default_rng(0)
    rows = []
    for name in ALGORITHMS:
        mnist, cifar = 97 + random.normal(0, 0.3), 73.5 + random.normal(0, 1)
        rows.append(
            (
                label(name),
                Measured(mnist, 0.12),
                Measured(mnist + 0.1, 0.1, decimals=1) if name != "EWC" else "<95",
                0.7,
                Measured(cifar, 0.23),
                Measured(cifar - 0.4, 0.2, decimals=1),
                -1.43 if name != "EWC" else None,
            )
        )
    return Table(
        "table1",
        "Test accuracies on Permuted MNIST (3 runs) and Split CIFAR (10 runs), mean and standard error in percent, next"
        " to the paper’s. The difference counts both errors.",
        ("algorithm", "P-MNIST", "P-MNIST, paper", "difference / σ", "CIFAR", "CIFAR, paper", "CIFAR difference / σ"),
        rows,
    )


def bars(canvas):
    left, right = canvas.subplots(1, 2)
    for axes, title in ((left, "P-MNIST"), (right, "Split CIFAR")):
        names = ["SI", "SIU", "full gradient", "decrease in loss"]
        heights = [12.1, 2.4, 2.3, 2.0]
        errors = [0.4, 0.1, 0.1, 0.05]
        axes.bar(names, heights, yerr=errors, color=[colour(name) for name in names], ecolor=ink(), width=0.65)
        axes.set_xticks(range(4), ["SI", "SIU", "full\ngradient", "decrease\nin loss"])
        axes.set_title(title)
    left.set_ylabel("summed importance")


def lines(canvas):
    tasks = np.arange(1, 11)
    left, right = canvas.subplots(1, 2, sharey=True)
    for axes, slope in ((left, 0.002), (right, 0.03)):
        for place, name in enumerate(("SI", "SIB", "SIU")):
            mean = np.array(0.97 - 0.25 * place - slope * tasks)
            axes.plot(tasks, mean, marker="o", color=colour(name), label=name)
            axes.fill_between(tasks, mean - 0.03, mean + 0.03, color=colour(name), alpha=0.2, linewidth=0)
        axes.set_xlabel("task")
    left.set(ylabel="correlation with SOS", ylim=(0, 1.02), title="P-MNIST")
    right.set_title("Split CIFAR")
    right.legend(loc="lower left")


def scatter(canvas):
    random = np.random.default_rng(1)
    x = random.lognormal(size=POINTS)
    for axes, name, noise in zip(canvas.subplots(1, 3), ("SI", "SIB", "SIU"), (0.1, 0.2, 1.0), strict=True):
        axes.scatter(x, x + noise * random.normal(size=POINTS) * x, s=1, alpha=0.15, linewidths=0, color=colour(name))
        axes.set(xlabel="SOS", ylabel=name, title=f"r = {1 - noise / 3:.2f}")


def narrow(canvas):
    axes = canvas.subplots()
    for name in ("MASX", "AF", "sqrtFisher"):
        axes.plot([1, 2, 3, 4], np.linspace(0.99, 0.9, 4) - 0.03 * len(name) / 5, marker="o", color=colour(name))
        axes.annotate(label(name), (4.1, 0.9 - 0.03 * len(name) / 5), color=colour(name), va="center")
    axes.set(xlabel="task", ylabel="correlation with MAS", ylim=(0.7, 1), xlim=(0.8, 5.4), xticks=[1, 2, 3, 4])


def verdicts():
    yield Verdict(
        "bias",
        "SI’s bias dominates it: the summed importance of SI is five to six times that of its unbiased version.",
        "holds",
        "5.4 ± 0.2 times on the first task of P-MNIST, 5 runs",
        "between 4 and 8, two standard errors included",
    )
    for number in range(2, 14):
        yield Verdict(
            f"claim-{number}",
            "The correlation of SI with SOS is above that of SIU with SOS on every task but the first.",
            "does not hold" if number == 5 else "holds",
            f"0.9{number % 10} ± 0.01 against 0.4{number % 10} ± 0.03",
            "difference above 0.2",
            "Measured on 5 runs." if number % 4 == 0 else "",
        )
    yield Verdict("large-batch", "Large batches hurt SI.", "does not hold", "−0.3 ± 0.4", "below −1")
    yield Verdict("eleven", "All eleven tasks.", "not run", "", "within 1.0", "Its runs are not in the store.")
    yield Verdict("halves", "Halves serve.", "undecided", "0.1", "within 1.0", "The interval contains the limit.")


def provenance():
    return Table(
        "runs",
        "Every run: what it was, where and when it was made.",
        ("run", "scenario", "measure", "seed", "accuracy", "seconds", "device", "commit", "finished"),
        [
            (f"{name.lower()}-{seed:012x}", "permuted-mnist", name, seed, 97.0 + seed / 10, 10.5, "NVIDIA H200",
             "0123456789abcdef0123456789abcdef01234567", "2026-11-15T12:00:00+00:00")
            for name in ALGORITHMS
            for seed in range(3)
        ],
    )  # fmt: skip


def sample_report():
    data = Table("summed-importances", "The bars.", ("measure", "sum"), [("SI", Measured(12.1, 0.4)), ("SIU", 2.4)])
    return Report(
        title="Unifying Regularisation Methods for Continual Learning, measured again",
        lead=Text(
            "Every table and figure of the paper from runs of our own, next to the paper’s numbers, and for each of its"
            " claims whether it holds in them.\n\n130 runs took 41 minutes on one NVIDIA H200."
        ),
        sections=(
            Section("The claims, one by one", tuple(verdicts())),
            Section(
                "Table 1: test accuracies",
                (Text("Each algorithm with the paper’s hyper-parameters. Nothing was tuned again."), accuracies()),
            ),
            Section(
                "Figure 1: SI, its bias and the square root of the Fisher information",
                (
                    Text("The summed importances say how much of the loss’s decrease a measure accounts for."),
                    Figure("sums", "Summed importances on the first task.", bars, data=data, alt="SI is far higher."),
                    Figure("correlations", "Pearson correlation with SOS, 5 runs; bands: standard error.", lines),
                    Figure("scatter", "Importance of 10⁵ random weights after the last task.", scatter, size=(10.2, 3)),
                ),
            ),
            Section(
                "Figure 2: <MAS> & the absolute Fisher",
                (
                    Figure("mas", "Correlation of MAS with MASX, AF and √Fisher.", narrow, size=(3.5, 2.8)),
                    Figure("mas-cifar", "The same on Split CIFAR.", narrow, size=(3.5, 2.8)),
                ),
            ),
        ),
        provenance=provenance(),
    )
