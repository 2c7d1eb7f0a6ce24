"""Runs that take a moment."""

from anchorhold_lab.experiments import Store, execute, paper_spec

OPTIONS = ("--tasks", "2", "--epochs", "1", "--hidden", "10", "--engine", "plain", "--device", "cpu")
CHANGES = {"tasks": 2, "epochs": 1, "hidden": (10,), "engine": "plain"}


def small_spec(measure="SI", seed=0, **changes):
    return paper_spec("permuted-digits", measure, seed=seed, **CHANGES | changes)


def small_store(folder, *specs):
    """Return a store with the results of some runs, and every event that was told."""
    told = []
    store = Store(folder)
    execute(specs, store, device="cpu", on_event=told.append)
    return store, told
