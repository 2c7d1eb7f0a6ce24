"""What a guard says of itself, and what it warns of, in situations that users come to."""

import argparse
import json
import re
import sys
import warnings
from pathlib import Path

import torch
from torch import nn

import anchorhold
from tests.helpers import grouped
from tests.regression.cases import CASES
from tests.regression.networks import batches, loss_of
from tests.regression.networks import network as made
from tests.regression.playing import Play

FILE = Path(__file__).with_name("texts.json")

SHOWN = [
    "SI, sgd", "EWC, adam", "rotated", "kronecker, exact", "lowrank", "dense, layers", "merged adapted, kronecker",
    "replay, EWC", "projection, fine-tune", "variational, EWC, sgd", "asymmetric, ALASSO", "tolerance, diagonal",
    "relative strength, diagonal", "strengths by patterns, diagonal", "SOLA, diagonal", "batch norm, freeze, EWC",
    "batch norm, fold, EWC", "watching, rotated", "decay, diagonal", "state in bfloat16, diagonal",
    "some protected, dense", "diagonal, sgd, implicit", "diagonal, sgd, in the gradient", "two, EWC",
]  # fmt: skip
"""The cases whose guards are printed: before a task, in the middle of the second, and after it."""


def printed(name):
    """Return what a case's guard says of itself on the way, and what was warned of."""
    said = []

    class Shown(Play):
        def step(self, task, step):
            if (task, step) in ((0, 0), (1, 2)):
                said.append(f"before step {step} of task {task}: {self.guard!r}")
            super().step(task, step)

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        play = Shown(CASES[name])
        play.run()
    said.append(f"at the end: {play.guard!r}")
    said.append(f"cost: {play.guard.cost()}")
    if play.guard.kept:
        said.append(f"retention: {play.guard.retention()}")
    return said + warned(told)


def warned(told):
    """Return the library's own warnings, each once."""
    own = [str(each.message) for each in told if issubclass(each.category, anchorhold.AnchorholdWarning)]
    return [f"warning: {message}" for message in dict.fromkeys(own)]


def steady(text):
    """Return a text without what differs from run to run: object numbers, seconds, folders, last digits."""
    text = re.sub(r"0x[0-9a-f]+", "0x…", text)
    text = re.sub(r"[0-9.]+ (ms|s)\b", r"… \1", text)
    return re.sub(r"\d+\.\d{3,}(e-?\d+)?", lambda found: f"{float(found[0]):.3g}", text)


# Situations that are warned of, or refused


def train(network, optimizer, task=0, steps=2, batch=None):
    for given in [batch] * steps if batch is not None else batches("mlp", task)[:steps]:
        optimizer.zero_grad()
        loss_of(network(given[0]), given[1]).backward()
        optimizer.step()


def learned(measure="EWC", network=None, **options):
    """Return a network, a guard that has consolidated it once, and an attached optimizer."""
    network = network or made("mlp")
    guard = anchorhold.Guard(network, measure, **grouped(**{"strength": 2.0, "from_scratch": True} | options))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
    guard.attach(optimizer)
    train(network, optimizer)
    guard.consolidate(batches("mlp", 0))
    return network, guard, optimizer


def no_strength():
    network, _, optimizer = learned(measure="MAS", strength=None)
    train(network, optimizer, 1)


def nothing_held_yet():
    network = made("mlp")
    guard = anchorhold.Guard(network, "EWC", strength=2.0)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
    guard.attach(optimizer)
    train(network, optimizer)


def too_strong():
    network, _, optimizer = learned(strength=1e6, implicit=False)
    train(network, optimizer, 1, steps=4)


def steps_that_nobody_saw():
    network, guard, _ = learned("SI")
    train(network, torch.optim.SGD(network.parameters(), lr=0.05), 1)
    guard.consolidate(batches("mlp", 1))


def not_attached_at_all():
    network = made("mlp")
    guard = anchorhold.Guard(network, "EWC", strength=2.0, from_scratch=True)
    guard.consolidate(batches("mlp", 0))
    train(network, torch.optim.SGD(network.parameters(), lr=0.05), 1)
    guard.consolidate(batches("mlp", 1))


def no_steps_in_a_task():
    _, guard, _ = learned("SI")
    guard.consolidate(batches("mlp", 1))


def diverged():
    network, guard, _ = learned()
    with torch.no_grad():
        network[0].weight.fill_(float("nan"))
    guard.consolidate(batches("mlp", 1))


def moving_statistics():
    network = made("images")
    guard = anchorhold.Guard(network, "EWC", strength=2.0, from_scratch=True)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
    guard.attach(optimizer)
    for task in range(2):
        for x, y in batches("images", task):
            optimizer.zero_grad()
            loss_of(network(x), y).backward()
            optimizer.step()
        guard.consolidate(batches("images", task))


def a_layer_replaced():
    network, _, optimizer = learned()
    network[2] = nn.Linear(5, 4).double()
    optimizer.param_groups[0]["params"] = list(network.parameters())
    train(network, optimizer, 1)


def no_data():
    _, guard, _ = learned()
    guard.consolidate()


def an_empty_loader():
    _, guard, _ = learned()
    guard.consolidate([])


def batches_of_nothing_known():
    _, guard, _ = learned()
    guard.consolidate(["text"])


def labels_that_are_missing():
    _, guard, _ = learned("EWC-empirical")
    guard.consolidate([x for x, _ in batches("mlp", 1)])


def another_models_state():
    _, guard, _ = learned()
    anchorhold.Guard(made("deep"), "EWC", strength=2.0).load_state_dict(guard.state_dict())


def another_measures_state():
    _, guard, _ = learned()
    anchorhold.Guard(made("mlp"), "MAS", strength=2.0).load_state_dict(guard.state_dict())


def another_strength_loaded():
    _, guard, _ = learned()
    anchorhold.Guard(made("mlp"), "EWC", strength=3.0).load_state_dict(guard.state_dict())


def a_measure_that_is_unknown():
    anchorhold.Guard(made("mlp"), "EWD", strength=2.0)


def a_pattern_that_matches_nothing():
    anchorhold.Guard(made("mlp"), "EWC", strength=2.0, protect="body.*")


def a_negative_strength():
    anchorhold.Guard(made("mlp"), "EWC", strength=-1.0)


def a_form_that_a_measure_has_not():
    anchorhold.Guard(made("mlp"), "SI", strength=2.0, form="rotated")


def strength_and_tolerance():
    anchorhold.Guard(made("mlp"), "EWC", strength=2.0, tolerance=0.01)


def a_tolerance_without_inputs():
    network, _, optimizer = learned(strength=None, tolerance=0.01)
    train(network, optimizer, 1)


def an_optimizer_of_another_model():
    guard = anchorhold.Guard(made("mlp"), "EWC", strength=2.0)
    guard.attach(torch.optim.SGD(made("deep").parameters(), lr=0.05))


def an_optimizer_that_climbs():
    network = made("mlp")
    guard = anchorhold.Guard(network, "EWC", strength=2.0)
    guard.attach(torch.optim.SGD(network.parameters(), lr=0.05, maximize=True))
    train(network, torch.optim.SGD(network.parameters(), lr=0.05, maximize=True))


def implicit_where_there_are_no_coordinates():
    network = made("mlp")
    guard = anchorhold.Guard(
        network, "EWC", strength=2.0, form="rotated", options=anchorhold.GuardOptions(implicit=True)
    )
    guard.attach(torch.optim.Adam(network.parameters()))


def going_back_with_nothing_to_go_back_to():
    anchorhold.Guard(made("mlp"), "EWC", strength=2.0).average()


def forgetting_what_is_not_there():
    _, guard, _ = learned()
    guard.forget("9.*")


SITUATIONS = {
    each.__name__.replace("_", " "): each
    for each in (
        no_strength, nothing_held_yet, too_strong, steps_that_nobody_saw, not_attached_at_all, no_steps_in_a_task,
        diverged, moving_statistics, a_layer_replaced, no_data, an_empty_loader, batches_of_nothing_known,
        labels_that_are_missing, another_models_state, another_measures_state, another_strength_loaded,
        a_measure_that_is_unknown, a_pattern_that_matches_nothing, a_negative_strength, a_form_that_a_measure_has_not,
        strength_and_tolerance, a_tolerance_without_inputs, an_optimizer_of_another_model, an_optimizer_that_climbs,
        implicit_where_there_are_no_coordinates, going_back_with_nothing_to_go_back_to, forgetting_what_is_not_there,
    )
}  # fmt: skip


def told(name):
    """Return what is warned of in a situation, and the error that it ends with, if any."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ended = []
        try:
            SITUATIONS[name]()
        except anchorhold.AnchorholdError as error:
            ended = [f"{type(error).__name__}: {error}"]
    return warned(caught) + ended


TEXTS = {f"print, {name}": (printed, name) for name in SHOWN} | {name: (told, name) for name in SITUATIONS}


def text_of(name):
    make, given = TEXTS[name]
    torch.manual_seed(0)
    return [steady(line) for line in make(given)]


def main():
    parser = argparse.ArgumentParser(description="Record what is said, where nothing was recorded or --replace asks.")
    parser.add_argument("--replace", action="store_true")
    replace = parser.parse_args().replace
    torch.set_num_threads(1)
    records = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    found = {name: text_of(name) for name in TEXTS}
    changed = [name for name in found.keys() | records.keys() if name in records and found.get(name) != records[name]]
    for name in sorted(changed):
        print(f"{name}:", *(f"  - {line}" for line in records[name]), sep="\n")
        print(*(f"  + {line}" for line in found.get(name, [])), sep="\n")
    kept = found if replace else found | {name: records[name] for name in changed}
    FILE.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if changed and not replace:
        sys.exit(f"{len(changed)} texts stay as they were recorded: --replace takes what is said now.")


if __name__ == "__main__":
    main()
