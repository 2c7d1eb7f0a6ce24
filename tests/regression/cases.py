"""What is frozen: measures, forms, optimizers, holds and what users do, in pairs where all of all would be too many."""

import copy
import itertools

import torch
from torch import nn

import anchorhold
from tests.regression.networks import batches, given_weights
from tests.regression.playing import AFTER, END, Case

CASES = {}


def add(name, **settings):
    assert name not in CASES, name
    CASES[name] = Case(**settings)


def option(**given):
    return lambda: given


# Measures

FROM_DATA = [
    "EWC", "EWC-sampled", "EWC-empirical", "sqrtFisher", "AF", "MAS", "MASX", "MAS-logits", "MASX-logits", "online-EWC"
]  # fmt: skip
ALONG_THE_PATH = {
    "SI": "plain",
    "SIU": "independent",
    "SIB": "independent",
    "SOS": "plain",
    "ALASSO": "plain",
    "RWalk": "samples",
    "RWalk-batch": "plain",
    "posterior": "plain",
    "posterior-scaled": "plain",
}
OF_WEIGHTS = ["L2", "L2-growing", "magnitude", "fine-tune"]
WEAK = {"posterior": 0.05, "posterior-scaled": 0.05, "AF": 0.2}
"""Strengths of importances so large that the usual one would throw the weights about."""


def strength_of(measure):
    return option(strength=WEAK[measure]) if measure in WEAK else dict


for _measure in [*FROM_DATA, *ALONG_THE_PATH, *OF_WEIGHTS]:
    _way = {"train": ALONG_THE_PATH.get(_measure, "plain"), "options": strength_of(_measure)}
    for _optimizer in ("sgd", "adam"):
        add(f"{_measure}, {_optimizer}", measure=_measure, optimizer=_optimizer, tasks=3, **_way)

SETTINGS = [
    ("EWC", {"samples": 5}),
    ("EWC", {"labels": "sampled", "draws": 2, "seed": 3}),
    ("EWC", {"average": True}),
    ("online-EWC", {"decay": 0.5, "normalise": False}),
    ("MAS", {"average": True, "samples": 7}),
    ("sqrtFisher", {"labels": "true"}),
    ("SI", {"damping": 0.001}),
    ("SI", {"clamp": "total"}),
    ("SIU", {"clamp": "total", "damping": 0.01}),
    ("ALASSO", {"measuring_strength": 0.5, "measuring_factor": 1.5}),
    ("RWalk-batch", {"every": 2, "alpha": 0.5}),
    ("SOS", {"beta2": 0.9, "normalise": False}),
    ("SOS", {"window": 0.5}),
    ("SOS", {"skip": 2}),
    ("SOS", {"alpha": 1.0}),
    ("SOS", {"alpha": "unbiased"}),
    ("posterior", {"eta": 0.5, "batch_size": 6}),
    ("L2", {"growing": True}),
]
for _measure, _settings in SETTINGS:
    _told = ", ".join(f"{key}={value}" for key, value in _settings.items())
    _train = "halves" if "alpha" in _settings and _measure == "SOS" else ALONG_THE_PATH.get(_measure, "plain")
    add(f"{_measure}({_told})", measure=(_measure, _settings), train=_train, options=strength_of(_measure))

for _measure, _network in itertools.product(FROM_DATA, ("deep", "images", "attention")):
    if (_measure, _network) != ("AF", "attention"):  # its exact mean is over all sequences of labels
        add(f"{_measure}, {_network}", measure=_measure, network=_network, options=strength_of(_measure))
for _measure, _network in itertools.product(("SI", "SOS", "L2"), ("images", "attention", "tied", "heads", "recurrent")):
    # Not Adam with L2, which makes steps of what rounding alone moves where a network's gradient is 0.
    _optimizer = "momentum" if _measure == "L2" else "adam"
    add(f"{_measure}, {_network}", measure=_measure, network=_network, optimizer=_optimizer)
for _network in ("tied", "heads", "recurrent", "adapted", "adapted sequence"):
    add(f"EWC, {_network}", network=_network)
for _positions in ("joint", "separate"):
    _settings = {"positions": _positions, "labels": "sampled"}
    add(f"EWC of {_positions} positions", measure=("EWC", _settings), network="attention")
for _likelihood in ("gaussian", "bernoulli"):
    _network = "regression" if _likelihood == "gaussian" else "binary"
    add(f"EWC, {_likelihood}", measure=("EWC", {"likelihood": _likelihood}), network=_network)
add("MAS-logits, regression", measure="MAS-logits", network="regression")
add("MAS, bernoulli", measure=("MAS", {"likelihood": "bernoulli"}), network="binary")
add(
    "AF of sampled labels, attention",
    measure=("AF", {"labels": "sampled"}),
    network="attention",
    options=option(strength=0.2),
)
add("EWC per token", measure=("EWC", {"per": "token"}), network="attention")

# Forms

FORMS = {
    "rotated": "rotated",
    "rotated, exact": ("Rotated", {"sums": "exact"}),
    "rotated, undamped": ("Rotated", {"damping": 0.0}),
    "rotated, expand": ("Rotated", {"sharing": "expand"}),
    "rotated, blocks": ("Rotated", {"outputs": "blocks", "inputs": "blocks", "largest_block": 2}),
    "rotated, lowrank": ("Rotated", {"outputs": "identity", "inputs": "lowrank", "rank": 2}),
    "rotated, small sides": ("Rotated", {"largest_side": 4}),
    "rotated, shared inputs": ("Rotated", {"share_inputs": True}),
    "rotated16": "rotated16",
    "kronecker": "kronecker",
    "kronecker, exact": ("Kronecker", {"sums": "exact"}),
    "kronecker, nearest": ("Kronecker", {"sums": "nearest"}),
    "kronecker, factors": ("Kronecker", {"sums": "factors", "damping": 0.0}),
    "kronecker, blocks": ("Kronecker", {"outputs": "blocks", "inputs": "diagonal", "largest_block": 2}),
    "kronecker, one side": ("Kronecker", {"outputs": "identity", "damping": 0.1}),
    "kronecker, lowrank": ("Kronecker", {"outputs": "lowrank", "inputs": "lowrank", "rank": 2}),
    "kronecker, shared inputs": ("Kronecker", {"share_inputs": True}),
    "kronecker16": "kronecker16",
    "lowrank": ("LowRank", {"rank": 4}),
    "lowrank, exact": ("LowRank", {"rank": 3, "sums": "exact", "damping": 0.01}),
    "lowrank, layers": ("LowRank", {"rank": 2, "span": "layers", "iterations": 3}),
    "dense": "dense",
    "dense, layers": ("Dense", {"span": "layers", "damping": 0.01}),
    "diagonal, damped": ("Diagonal", {"damping": 0.01}),
}


def of_form(name):
    return {"form": FORMS.get(name, name)}


for _form in FORMS:
    add(_form, tasks=3, **of_form(_form))
    add(f"{_form}, momentum", optimizer="momentum", **of_form(_form))
for _form, _network in itertools.product(FORMS, ("deep", "images", "attention", "recurrent")):
    if _network != "recurrent" or _form in ("rotated", "kronecker", "lowrank", "dense"):
        add(f"{_form}, {_network}", network=_network, **of_form(_form))
for _form, _network in itertools.product(("rotated", "kronecker", "dense, layers"), ("tied", "heads")):
    add(f"{_form}, {_network}", network=_network, **of_form(_form))
for _form, _measure in itertools.product(("rotated", "rotated, exact", "rotated, blocks", "rotated16"), FROM_DATA[1:9]):
    _more = {"measure": _measure, "options": strength_of(_measure)}
    add(f"{_form} of {_measure}", **of_form(_form), **_more)
for _form, _measure in itertools.product(
    ("kronecker", "kronecker16", "lowrank", "dense"), ("EWC-sampled", "EWC-empirical")
):
    add(f"{_form} of {_measure}", measure=_measure, **of_form(_form))

# Adapters, by their merged weights

for _form in ("diagonal", "rotated", "kronecker", "kronecker, exact", "kronecker, one side", "lowrank, layers"):
    for _network in ("adapted", "adapted sequence"):
        _settings = {"form": FORMS.get(_form, "diagonal"), "network": _network, "options": option(space="merged")}
        add(f"merged {_network}, {_form}", optimizer="adam", **_settings)
add("weights of adapters, kronecker", network="adapted", form="kronecker", options=option(space="weights"))

# Optimizers

OPTIMIZERS = [
    "sgd foreach", "sgd fused", "nesterov", "adam single", "adam foreach", "adam fused", "amsgrad", "adamw",
    "adamw fused", "adamax", "nadam", "radam", "rmsprop", "rmsprop centred", "adagrad", "adadelta", "asgd", "rprop",
    "groups", "two",
]  # fmt: skip
for _optimizer in OPTIMIZERS:
    _settings = {"optimizer": _optimizer, "resumes": _optimizer != "nadam"}  # whose own state goes on otherwise
    for _measure in ("SI", "EWC"):
        add(f"{_optimizer}, {_measure}", measure=_measure, **_settings)
    add(f"{_optimizer}, rotated", form="rotated", **_settings)
for _optimizer in ("lbfgs", "sam", "sgd", "adam"):
    for _measure in ("SI", "EWC"):
        _name = f"closure of {_optimizer}, {_measure}"
        _way = "in two steps" if _optimizer == "sam" else "closure"
        add(_name, measure=_measure, optimizer=_optimizer, train=_way)
for _form, _optimizer, _implicit in itertools.product(
    ("diagonal", "rotated", "kronecker", "lowrank", "dense"), ("sgd", "momentum", "adam", "rmsprop"), (True, False)
):
    _told = "implicit" if _implicit else "in the gradient"
    _settings = {"form": FORMS.get(_form, _form), "optimizer": _optimizer}
    if _form == "diagonal" or _optimizer in ("sgd", "momentum") or not _implicit:  # one rate for a whole layer
        add(f"{_form}, {_optimizer}, {_told}", options=option(implicit=_implicit), **_settings)

# Holds

HOLDS = {
    "replay": ("Replay", ("Reservoir", 8), {"size": 4}),
    "replay of a ring": ("Replay", ("Ring", 8), {"size": 4, "share": 0.3}),
    "replay, added": ("Replay", ("Reservoir", 8), {"size": 4, "share": None, "strength": 0.5}),
    "averaged gradient": ("AveragedGradient", ("Reservoir", 8), {"size": 4}),
    "distillation": ("Distillation", ("Reservoir", 8), {"size": 4}),
    "distillation of outputs": ("Distillation", ("Reservoir", 8), {"size": 4, "teacher": "outputs", "share": 0.2}),
    "distillation on new inputs": ("Distillation", None, {"temperature": 2.0}),
    "distillation, squared": ("Distillation", ("Ring", 8), {"size": 4, "match": "outputs"}),
    "dark experience": ("DarkExperience", ("Reservoir", 8), {"size": 4}),
    "dark experience, DER": ("DarkExperience", ("Reservoir", 8), {"size": 4, "alpha": 1.0, "beta": 0.0}),
    "projection": ("Projection", None, {"threshold": 0.6}),
    "projection, frozen rest": ("Projection", None, {"threshold": 0.6, "rest": "freeze"}),
    "projection, soft": ("Projection", None, {"method": "owm", "alpha": 0.1}),
}
for _name, _hold in HOLDS.items():
    for _measure, _optimizer in (("fine-tune", "sgd"), ("EWC", "adam")):
        add(f"{_name}, {_measure}", measure=_measure, optimizer=_optimizer, holds=(_hold,), tasks=3)
    if "distillation" not in _name or "squared" in _name:
        add(f"{_name}, images", network="images", holds=(_hold,), optimizer="momentum")
for _measure in ("ALASSO", "SI", "EWC"):
    for _settings in ({}, {"factor": 3.0, "epsilon": 0.01}):
        _hold = ("Asymmetric", None, _settings)
        add(f"asymmetric{' harder' * bool(_settings)}, {_measure}", measure=_measure, holds=(_hold,), tasks=3)
for _measure, _optimizer in itertools.product(("fine-tune", "EWC"), ("sgd", "adam")):
    _hold = ("Variational", None, {"samples": 24})
    add(f"variational, {_measure}, {_optimizer}", measure=_measure, optimizer=_optimizer, holds=(_hold,))
add("replay and projection", holds=(HOLDS["replay"], HOLDS["projection"]))
add("replay and distillation, rotated", form="rotated", holds=(HOLDS["replay"], HOLDS["distillation"]))
add("replay of heads", network="mlp", holds=(HOLDS["replay"],), train="closure", optimizer="lbfgs")

# The guard's other arguments

OPTIONS = {
    "decay": option(decay=0.5),
    "anchor of means": option(anchor="mean"),
    "SOLA": option(anchor="mean", gradient_term=True, strength=0.5),
    "relative strength": option(relative_strength=0.5),
    "strengths by patterns": option(strength={"*0.*": 5.0, "*": 1.0}),
    "some protected": option(protect=["*weight", "*bias"]),
    "a layer protected": option(protect=["*0.*"]),
    "watching": option(watch=["SI", "SOS", "MAS", "L2"]),
}
for (_name, _options), _form in itertools.product(
    OPTIONS.items(), ("diagonal", "rotated", "kronecker, exact", "dense")
):
    if (_name, _form) != ("strengths by patterns", "dense"):  # one matrix has one strength
        add(f"{_name}, {_form}", options=_options, form=FORMS.get(_form, _form), tasks=3)
for _name in ("decay", "anchor of means", "relative strength", "strengths by patterns", "a layer protected"):
    for _measure in ("SI", "MAS"):
        add(f"{_name}, {_measure}", options=OPTIONS[_name], measure=_measure, network="heads", optimizer="adam")
for _dtype, _form in itertools.product(("bfloat16", "float32"), ("diagonal", "rotated", "kronecker")):
    _settings = {"form": _form, "options": option(state_dtype=getattr(torch, _dtype))}
    if (_dtype, _form) != ("bfloat16", "kronecker"):  # rounded factors are not positive
        add(f"state in {_dtype}, {_form}", **_settings)
add("state in bfloat16, SI", measure="SI", options=option(state_dtype=torch.bfloat16))
for _measure, _settled in itertools.product(("EWC", "MAS", "SI"), ("freeze", "fold")):
    if (_measure, _settled) != ("SI", "fold"):
        _settings = {"measure": _measure, "options": option(batch_norm=_settled)}
        add(f"batch norm, {_settled}, {_measure}", network="images", tasks=3, **_settings)
for _form in ("rotated", "kronecker"):
    for _settled in ("freeze", "fold"):
        add(f"batch norm, {_settled}, {_form}", network="images", form=_form, options=option(batch_norm=_settled))

# What else users do


def at(task, step, do):
    """Return an event that does something at one place."""

    def event(play, here, now):
        if (here, now) == (task, step):
            do(play)

    return event


def always(step, do):
    def event(play, task, now):
        if now == step:
            do(play, task)

    return event


def keep_and_follow(play, task, step):
    """Keep some inputs once the first task has ended."""
    if (task, step) == (0, AFTER):
        play.guard.keep([batches(play.case.network, 20)[0][0]], "others", samples=6)


def tolerance(**settings):
    return lambda: {"tolerance": anchorhold.Tolerance(0.01, every=1, **settings)}


for _form in ("diagonal", "rotated", "kronecker"):
    for _settings in ({}, {"damping": 0.1, "start": 0.5, "aim": 1.0}):
        _told = f"tolerance{' of its own' * bool(_settings)}, {_form}"
        add(_told, form=_form, options=tolerance(**_settings), events=keep_and_follow, tasks=3)
add("tolerance, MAS", measure="MAS", options=tolerance(), events=keep_and_follow, optimizer="adam")
add("tolerance, images", network="images", options=tolerance(), events=keep_and_follow)


def watched(play, task):
    if play.case.measure == "SOS":  # which has seen the task's steps
        play.guard.gradients.restart_task()
    play.guard.gradients.microbatches(batches(play.case.network, task), forward=play.forward(task))
    play.guard.consolidate()


for _measure, _network in itertools.product(("EWC-empirical", "EWC-sampled", "SOS"), ("mlp", "attention")):
    _settings = {"measure": _measure, "network": _network, "consolidate": None, "events": always(END, watched)}
    add(f"watching only, {_measure}, {_network}", **_settings)


for _way in ("accumulated", "observed", "observed in parts", "penalty", "clipped", "without some"):
    for _measure, _optimizer in (("SI", "sgd"), ("SOS", "adam"), ("EWC", "momentum")):
        add(f"{_way}, {_measure}", measure=_measure, optimizer=_optimizer, train=_way)
    add(f"{_way}, rotated", form="rotated", train=_way)
for _form in ("kronecker", "dense", "rotated, blocks"):
    add(f"penalty in the loss, {_form}", train="penalty", **of_form(_form))
add("penalty in the loss, replay", train="penalty", holds=(HOLDS["replay"],))
add("penalty in the loss, mean", train="penalty", options=option(anchor="mean"), form="kronecker")


def back_by_a_share(play, task):
    play.guard.consolidate(batches(play.case.network, task), share=0.6 if task else None)


SHARED = {"consolidate": None, "events": always(END, back_by_a_share)}
for _form in ("diagonal", "rotated", "kronecker", "lowrank", "dense"):
    add(f"back by a share, {_form}", form=_form, **SHARED)
add("back by a share, SI", measure="SI", **SHARED)
add("back by a share, adapters", network="adapted", options=option(space="merged"), **SHARED)
for _form in ("rotated", "rotated, exact", "rotated16", "kronecker", "kronecker16"):
    add(f"in turns, {_form}", consolidate={"within": 4000}, network="deep", **of_form(_form))


def average(play):
    play.guard.average(0.7)


def forget(play):
    play.guard.forget("2.*" if play.case.network == "mlp" else "heads.0.*")


def pull_back(play):
    play.guard.keep([batches(play.case.network, 20)[0][0]], "others", samples=6)
    with torch.no_grad():
        for p in play.model.parameters():
            p.mul_(1.3)
    play.guard.pull_back(0.005)


def restart(play):
    play.guard.gradients.restart_task()


def attached_anew(play):
    play.guard.detach()
    play.guard.attach(*play.optimizers)


def stronger(play):
    play.guard.strength = 7.0


def by_patterns(play):
    play.guard.strength = {"0.*": 7.0, "*": 0.5}


def another_head(play):
    """Replace the head by a wider one, after its importance is given up."""
    play.guard.forget("2.*")
    play.model[2] = nn.Linear(5, 4).double()
    given_weights(play.model[2], seed=5)
    play.optimizers[0].param_groups[0]["params"] = list(play.model.parameters())
    play.optimizers[0].state.clear()


def frozen(play):
    next(play.model.parameters()).requires_grad_(False)


def thawed(play):
    next(play.model.parameters()).requires_grad_(True)


def both(*events):
    def event(play, task, step):
        for each in events:
            each(play, task, step)

    return event


EVENTS = {
    "averaged": (at(1, END, average), True),
    "forgotten": (at(1, 1, forget), True),
    "forgotten at the end": (at(0, AFTER, forget), True),
    "pulled back": (at(1, 3, pull_back), True),
    "started anew": (at(1, 1, restart), True),
    "attached anew": (at(1, 1, attached_anew), True),
    "another strength": (at(1, 1, stronger), True),
    "other strengths": (at(1, 1, by_patterns), True),
    "another head": (at(0, AFTER, another_head), False),
    "frozen for a while": (both(at(1, 1, frozen), at(1, 3, thawed)), False),
    "frozen for good": (at(0, AFTER, frozen), False),
}
for (_name, (_event, _resumes)), _measure in itertools.product(EVENTS.items(), ("SI", "EWC", "SOS")):
    _settings = {"measure": _measure, "events": _event, "resumes": _resumes}
    add(f"{_name}, {_measure}", optimizer="momentum" if _measure == "EWC" else "sgd", tasks=3, **_settings)
for (_name, (_event, _resumes)), _form in itertools.product(EVENTS.items(), ("rotated", "kronecker, exact")):
    if "frozen" not in _name:
        add(f"{_name}, {_form}", form=FORMS[_form], events=_event, resumes=_resumes, tasks=3)


def mean_of_weights(play, task):
    """Consolidate an average of the weights of the last steps."""
    average = copy.deepcopy(play.model)
    with torch.no_grad():
        for p in average.parameters():
            p.mul_(0.9)
    with anchorhold.averaged_weights(play.model, average):
        play.guard.consolidate(batches(play.case.network, task))


add("averaged weights consolidated", consolidate=None, events=always(END, mean_of_weights))
add("averaged weights consolidated, SI", measure="SI", consolidate=None, events=always(END, mean_of_weights))


def before_the_first_task(play, task, step):
    if (task, step) == (0, 0):
        play.guard.consolidate(batches(play.case.network, 9))


for _form in ("diagonal", "rotated", "kronecker"):
    add(f"pretrained, {_form}", form=_form, events=before_the_first_task, options=option(from_scratch=False))


def rehearsed(play):
    play.guard.rehearse(batches(play.case.network, 0))


add("rehearsed", events=at(0, 1, rehearsed))
add("rehearsed, SI and replay", measure="SI", events=at(1, 1, rehearsed), holds=(HOLDS["replay"],))


def free_of_tasks(play, task, step):
    """Consolidate by itself after every third step, on the hardest of recent samples."""
    if not hasattr(play, "task_free"):
        play.task_free = anchorhold.TaskFree(play.guard, every=3, hard=4)
    if 0 < step <= END:
        batch = play.batch(task, step - 1)
        play.task_free.step(play.loss(batch).detach(), batch)


for _measure in ("SI", "MAS", "EWC"):
    _settings = {"consolidate": None, "events": free_of_tasks, "resumes": False}
    add(f"free of tasks, {_measure}", measure=_measure, **_settings)
