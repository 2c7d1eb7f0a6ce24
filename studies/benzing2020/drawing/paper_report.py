"""The report on some items: what was drawn, which claims hold, what is missing, and where everything comes from."""

from collections.abc import Mapping, Sequence

from anchorhold_lab.experiments import Spec
from anchorhold_lab.report import Cell, Report, Section, Table, Text, Verdict
from studies.benzing2020.claims import CLAIMS, RULE, check_all, counted, in_authors_data
from studies.benzing2020.drawing.tables.run_tables import unusual_average
from studies.benzing2020.findings import Results
from studies.benzing2020.item import PaperItem, runs_of
from studies.benzing2020.relatives.making import unknown_rows
from studies.benzing2020.searched_strengths import unknown_strengths

_TITLE = "Unifying Regularisation Methods for Continual Learning"
_CLAIMS = (
    "What the paper says, as numbers that runs decide. Every threshold was written down before the runs that test it, "
    "from the paper's own words, unless the claim says that it was added. "
    f"{RULE} "
    "Beside ours stand the authors' own data, where their public repository (freedbee/continual_regularisation) has "
    "them: outputs of notebooks, and raw numbers in its history, most of one run. One number decides nothing; what is "
    "said of it is whether it lies within the same threshold."
)
_CLAIMS_ON_DIGITS = (
    f"{RULE} "
    "Here are the paper's claims that are expected to hold in miniature, with thresholds for digits: P-MNIST stands "
    "for the permuted digits, CIFAR for the split ones. They show how the study works; the paper preset tests it."
)
_OWN_CLAIMS = (
    "What we say ourselves, about what the paper does not look at; these claims are counted apart from the paper's. "
    "Thresholds are aims that were set before the runs that test them, after first trials with other runs. The rule is "
    "the same."
)
_OWN_CLAIMS_ON_DIGITS = (
    "Of what we say ourselves, about what the paper does not look at, that which is expected to hold in miniature."
)
FILES = (
    ("table1.csv", "mean accuracies, a line for each algorithm and benchmark"),
    ("runs.csv", "every run, with its accuracy on each task"),
)
"""What lies beside the page, besides the numbers of its own tables and figures."""
_MISSING = (
    "These runs have no result: they failed, were stopped, are damaged, or have not been begun. What needs them is "
    "without them."
)
_PROVENANCE = (
    "Every run behind the tables and figures, with what it took: seconds of training for it alone, where several "
    "trained side by side. The id is a hash of all that decides the result."
)


def report_of(items: Sequence[PaperItem], results: Results) -> Report:
    """Return the report."""
    specs = runs_of(items, results.preset)
    verdicts = check_all(results, {item.name for item in items})
    sections = [Section(item.title, tuple(item.draw(results))) for item in items]
    on_digits = results.preset.thresholds == "digits"
    papers, own = _papers_and_own(verdicts)
    if papers:
        sections.append(Section("The claims", (Text(_CLAIMS_ON_DIGITS if on_digits else _CLAIMS), *papers)))
    if own:
        about = _OWN_CLAIMS_ON_DIGITS if on_digits else _OWN_CLAIMS
        sections.append(Section("Claims of our own", (Text(about), *own)))
    if missing := _missing(items, specs, results):
        columns = ("run", "seeds", "status", "reason")
        sections.append(Section("Runs without a result", (Table("runs-without-result", _MISSING, columns, missing),)))
    return Report(_TITLE, _lead(specs, verdicts, results), tuple(sections), _provenance(specs, results), FILES)


def _lead(specs: Sequence[Spec], verdicts: Sequence[Verdict], results: Results) -> Text:
    runs = results.finished(specs)
    minutes = sum(run.seconds for run in runs) / 60
    devices = ", ".join(sorted({run.device for run in runs})) or "no machine yet"
    papers, own = _papers_and_own(verdicts)
    claims = [counted(papers)] if papers else []
    if papers and results.preset.thresholds == "digits":
        claims.append(f"The paper makes {len(CLAIMS)} in all; the others are not expected at this size.")
    claims += [in_authors_data(papers)] if any(each.authors for each in papers) else []
    claims += [counted(own, "claims of our own")] if own else []
    return Text(
        f"The experiments of Benzing's paper, run with anchorhold. {results.preset.about}\n\n"
        f"{len(runs)} of {len(specs)} runs have finished: {minutes:.1f} minutes of training on {devices}, run by run. "
        f"{' '.join(claims)}"
    )


def _papers_and_own(verdicts: Sequence[Verdict]) -> tuple[list[Verdict], list[Verdict]]:
    return [each for each in verdicts if not each.own], [each for each in verdicts if each.own]


def _missing(items: Sequence[PaperItem], specs: Sequence[Spec], results: Results) -> tuple[tuple[Cell, ...], ...]:
    alike: dict[tuple[str, str, str | None], list[int]] = {}
    for spec in specs:
        status = results.status(spec)
        if status != "finished":
            shown = {"unknown": "not begun", "started": "stopped"}.get(status, status)
            alike.setdefault((_described(spec), shown, results.why_missing(spec)), []).append(spec.seed)
    rows: list[tuple[Cell, ...]] = [
        (run, _seeds(seeds), status, reason) for (run, status, reason), seeds in alike.items()
    ]
    for benchmark, algorithm in dict.fromkeys(
        found for item in items for found in unknown_strengths(results.preset, item.algorithms)
    ):
        damage = results.damaged_searches.get((benchmark, algorithm.name))
        reason = damage or "Its strength is to be searched for."
        rows.append((f"{algorithm.name} on {benchmark}", None, "damaged" if damage else "strength unknown", reason))
    for study, row in unknown_rows(results.preset.relatives) if any(item.relatives for item in items) else ():
        damage = results.damaged_searches.get((study.title, row.name))
        reason = damage or "What is best for it is to be found by trying."
        rows.append((f"{row.name}, {study.title}", None, "damaged" if damage else "settings unknown", reason))
    return tuple(rows)


def _provenance(specs: Sequence[Spec], results: Results) -> Table:
    columns = ("id", "run", "seed", "accuracy %", "seconds", "side by side", "device", "commit", "torch", "finished")
    rows = [
        (
            run.spec.id,
            _described(run.spec),
            run.spec.seed,
            round(100 * run.average_accuracy, 2),
            round(run.seconds, 2),
            run.side_by_side,
            run.device,
            _short(run.commit),
            run.versions.get("torch"),
            run.finished_at[:19],
        )
        for run in results.finished(specs)
    ]
    return Table("provenance", _PROVENANCE, columns, tuple(rows))


def _short(commit: str | None) -> str | None:
    """Return a commit as one writes it; that the code had changes beyond it stays."""
    if commit is None:
        return None
    hashed, changes, what = commit.partition("+")
    return hashed[:12] + changes + what


def _seeds(seeds: Sequence[int]) -> str:
    """Return seeds as one writes them, those in a row as a range."""
    rows: list[list[int]] = []
    for seed in sorted(seeds):
        if rows and seed == rows[-1][-1] + 1:
            rows[-1].append(seed)
        else:
            rows.append([seed])
    return ", ".join(str(row[0]) if len(row) == 1 else f"{row[0]}–{row[-1]}" for row in rows)


def _described(spec: Spec) -> str:
    """Return what tells a run apart from others of the study."""
    settings = spec.settings
    parts = [f"{spec.measure} on {spec.scenario}", f"c = {spec.strength:g}"]
    parts += [f"{spec.incremental}-incremental"] * (spec.incremental is not None)
    parts += [f"α = {spec.measure_settings['alpha']:g}"] if spec.measure_settings.get("alpha") is not None else []
    parts += [f"{name} {value:g}" for name, value in unusual_average(spec).items()]
    parts += ["re-initialised"] * settings.reinitialise
    later = "" if settings.later_epochs is None else f" and then {settings.later_epochs}"
    parts += [f"{spec.tasks} tasks", f"{settings.epochs}{later} epochs", f"batch {settings.batch_size}"]
    parts += [settings.optimizer] * (settings.optimizer != "adam")
    parts += ["in halves"] * (settings.second_batch == "halves")
    kind = spec.scenario_kind
    parts += [f"rate {settings.learning_rate:g}"] * (settings.learning_rate != kind.protocol.settings.learning_rate)
    parts += [f"the rate decays to {settings.rate_decay:g} of it"] * (settings.rate_decay != 1)
    parts += [f"{name} {' '.join(f'{n:g}' for n in given)}" for name, given in _unlike(spec) if given]
    parts += [f"network {spec.network}"] * (spec.network not in (None, kind.network))
    parts += [f"{spec.form}{_said(spec.form_settings)}"] * (spec.form != "diagonal")
    parts += [f"trained {settings.trains}"] * (settings.trains != "sequentially")
    parts += [f"compressed in {settings.compress} epochs"] * bool(settings.compress)
    parts += [f"{hold}{_said(spec.hold_settings.get(hold, {}))}" for hold in spec.holds]
    parts += [f"{spec.kept} samples a task set aside"] * bool(spec.kept)
    parts += [f"consolidated by {settings.consolidate}"] * (settings.consolidate != "tasks")
    # Measures that watch have numbers of samples of their own.
    usual = kind.protocol.settings.samples
    parts += [f"{settings.samples} samples"] * (settings.samples not in (None, usual) and not spec.watch)
    parts += [f"watched by {', '.join(spec.watch)}"] if spec.watch else []
    return ", ".join(parts)


def _unlike(spec: Spec) -> list[tuple[str, tuple[float, ...]]]:
    return [("sizes", spec.sizes), ("tasks in the order", spec.order)]


def _said(settings: Mapping[str, object]) -> str:
    said = ", ".join(f"{name} {value}" for name, value in settings.items())
    return f" ({said})" if said else ""
