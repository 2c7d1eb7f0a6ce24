"""The claims that hold on digits too, where networks and tasks are tiny, with thresholds of their own.

P-MNIST stands for the permuted digits there, CIFAR for the split ones. Claims that are missing don't hold, and need
not: few samples make little noise, and two digits at a time are hardly ever forgotten. These thresholds were set after
looking at digits, so they say whether the miniature works as it did, and nothing about the paper.
"""

from holdfast.paper.claims.claim import AtLeast, AtMost, Bound

EXPECTED_ON_DIGITS: dict[str, Bound] = {
    # The bias is as large as the unbiased part on the first task; on MNIST, five times as large.
    "bias-dominates": AtLeast(0.8),
    "noise-exceeds-gradient": AtLeast(0.5),
    # From a few steps of each task in three runs, the full gradient's sum has an error of several per cent.
    "siu-tracks-full-gradient-p-mnist": AtMost(0.2, errors=2),
    "siu-tracks-full-gradient-cifar": AtMost(0.2, errors=2),
    "sums-above-decrease-siu-p-mnist": AtLeast(0.0),
    "sums-above-decrease-full-p-mnist": AtLeast(0.0),
    "sum-below-decrease-on-last-cifar-task": AtMost(0.0),
    "negative-on-later-cifar-tasks": AtLeast(0.1),
    "none-negative-on-first-cifar-task": AtMost(0.01),
    "a2-p-mnist": AtLeast(0.85),
    "a2-cifar": AtLeast(0.9),
    "a2-cifar-rescaled": AtLeast(0.85),
    "bias-explains-second-order-si": AtLeast(0.0, errors=2),
    "regularisation-weakens-tie": AtLeast(0.0, errors=2),
    "control-restores-tie-no-re-init": AtLeast(0.75),
    "control-restores-tie-c-0": AtLeast(0.75),
    "without-top-si": AtLeast(0.85),
    "b1-p-mnist": AtLeast(0.95),
    "b1-cifar": AtLeast(0.95),
    "b2-p-mnist": AtLeast(0.95),
    "b2-cifar": AtLeast(0.95),
    "b3-p-mnist": AtLeast(0.85),
    "b3-cifar": AtLeast(0.95),
    # Three seeds of small networks scatter by a point or two.
    "mas-af-root-fisher-alike-p-mnist": AtMost(4.0),
    "mas-af-root-fisher-alike-cifar": AtMost(2.0),
    "magnitude-falls-short": AtMost(85.0),
    "protection-helps": AtLeast(0.0, errors=2),
}

SAID_OF_DIGITS: dict[str, str] = {
    "bias-dominates": "The bias of SI is about as large as its unbiased part (in the paper 5-6 times as large).",
    "sum-below-decrease-on-last-cifar-task": "On the last of the split tasks, SIU underestimates the decrease in loss.",
    "magnitude-falls-short": "Importance by weight magnitude cannot compete on the permuted digits.",
}
"""What is claimed of the digits where the paper's own sentence would say more than they show."""
