"""The claims that hold on digits too, where networks and tasks are tiny, with sentences and thresholds of their own.

Those that are missing don't hold, or three runs scatter too far to decide them, and they need not: few samples make
little noise, and networks of a few units vary much. These thresholds were set after looking at digits, so they say
whether the miniature works as it did, and nothing about the paper.
"""

from studies.benzing2020.claims.rule import AtLeast, AtMost, Between, Bound

EXPECTED_ON_DIGITS: dict[str, tuple[str, Bound]] = {
    "bias-dominates": (
        "The bias of SI is about as large as its unbiased part (in the paper, 5-6 times as large).",
        AtLeast(0.8),
    ),
    "noise-exceeds-gradient": (
        "The noise of a batch's gradient is larger than the full gradient in most steps.",
        AtLeast(0.5),
    ),
    # From a few steps of each task in three runs, the full gradient's sum has an error of several per cent.
    "siu-tracks-full-gradient-p-mnist": (
        "SIU and the full gradient give similar sums (permuted digits, every task).",
        Between(-0.25, 0.25),
    ),
    "sums-above-decrease-siu-p-mnist": (
        "The sum of SIU overestimates the decrease in loss (permuted digits, every task).",
        AtLeast(0.0),
    ),
    "sums-above-decrease-full-p-mnist": (
        "The sum of the full gradient overestimates the decrease in loss (permuted digits, every task).",
        AtLeast(0.0),
    ),
    "sum-below-decrease-on-last-cifar-task": (
        "On the last split task, the sum of SIU, without the head's part, underestimates the decrease in loss.",
        AtMost(0.0),
    ),
    "negative-on-later-cifar-tasks": (
        "On every split task but the first, many weights have negative SI importances before rescaling.",
        AtLeast(0.1),
    ),
    "none-negative-on-first-cifar-task": (
        "There are no negative SI importances after the first split task.",
        AtMost(0.01),
    ),
    "a2-p-mnist": (
        "(A2) SI is nearly proportional to SOS on every permuted task (in the paper, correlations ≈1).",
        AtLeast(0.85),
    ),
    "a2-cifar": (
        "(A2) So it is on the first split task, before rescaling (in the paper, 0.99).",
        AtLeast(0.9),
    ),
    "a2-cifar-rescaled": (
        "(A2) And after rescaling (in the paper, 0.9).",
        AtLeast(0.85),
    ),
    "bias-explains-second-order-si": (
        "SI is more similar to SOS than SIU is (permuted digits, every task).",
        AtLeast(0.0),
    ),
    "regularisation-weakens-tie": (
        "Strong regularisation weakens the tie between SI and SOS on the split tasks after the first.",
        AtLeast(0.0),
    ),
    "control-restores-tie-no-re-init": (
        "Less regularisation (no re-init) keeps the correlation of SI with SOS high on every split task.",
        AtLeast(0.75),
    ),
    "control-restores-tie-c-0": (
        "Less regularisation (c = 0) keeps the correlation of SI with SOS high on every split task.",
        AtLeast(0.75),
    ),
    "control-restores-later-tie-no-re-init": (
        "Less regularisation (no re-init) keeps the correlation high on the split tasks after the first.",
        AtLeast(0.75),
    ),
    "control-restores-later-tie-c-0": (
        "Less regularisation (c = 0) keeps the correlation high on the split tasks after the first.",
        AtLeast(0.75),
    ),
    "without-top-si": (
        "Without the 5 % of weights with the highest SIU, SI is still tied to SOS (first split task; paper 0.9).",
        AtLeast(0.85),
    ),
    "b1-p-mnist": ("(B1) MAS is nearly proportional to MASX on every permuted task.", AtLeast(0.95)),
    "b1-cifar": ("(B1) MAS is nearly proportional to MASX on every split task.", AtLeast(0.95)),
    "b2-p-mnist": ("(B2) MAS is nearly proportional to AF on every permuted task.", AtLeast(0.95)),
    "b2-cifar": ("(B2) MAS is nearly proportional to AF on every split task.", AtLeast(0.95)),
    "b3-p-mnist": (
        "(B3) MAS is similar to √Fisher on every permuted task (in the paper, correlations ≈0.9).",
        AtLeast(0.85),
    ),
    "b3-cifar": ("(B3) MAS is nearly proportional to √Fisher on every split task.", AtLeast(0.95)),
    # Three seeds of small networks scatter by a point or two.
    "mas-af-root-fisher-alike-p-mnist": (
        "MAS, AF and √Fisher perform similarly (permuted digits, within four points).",
        Between(-4.0, 4.0),
    ),
    "mas-af-root-fisher-alike-cifar": (
        "MAS, AF and √Fisher perform similarly (split digits, within two points).",
        Between(-2.0, 2.0),
    ),
    "magnitude-falls-short": (
        "Importance by weight magnitude cannot compete on the permuted digits.",
        AtMost(85.0),
    ),
    "own-protection-helps": (
        "SI keeps what plain fine-tuning forgets (permuted digits).",
        AtLeast(0.0),
    ),
    "own-rotated-beats-diagonal-p-mnist": (
        "EWC keeps more in the layers' own coordinates than weight by weight, with the same samples (permuted digits).",
        AtLeast(0.0),
    ),
    "own-many-tasks-beat-diagonal": (
        "So it does over many tasks, in these coordinates or as a product of two factors (permuted digits).",
        AtLeast(0.0),
    ),
    "own-window-nearer-fisher-p-mnist": (
        "Without α, √v comes nearer to √Fisher with a window tied to the task's length (permuted digits).",
        AtLeast(0.0),
    ),
    "own-window-nearer-fisher-cifar": (
        "So it does on the split digits.",
        AtLeast(0.0),
    ),
    "own-importance-helps-by-task": (
        "Where the task is known, importance keeps more than nothing.",
        AtLeast(0.0),
    ),
    "own-importance-cannot-by-class": (
        "Where classes are to be told from all others, importance alone keeps next to nothing.",
        AtMost(5.0),
    ),
    "own-replay-can-by-class": ("There, a few old samples keep most of it.", AtLeast(20.0)),
    "own-distributions-keep": ("Weights as distributions keep more than weights as numbers.", AtLeast(5.0)),
    "own-rwalk-keeps-in-one-pass": ("In one pass over the data, RWalk keeps more than nothing.", AtLeast(0.0)),
}
"""What is said of the digits, and the bound that it has to keep, by the name of the claim."""
