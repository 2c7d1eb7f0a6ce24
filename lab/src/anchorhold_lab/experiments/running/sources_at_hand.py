"""The files that runs are made from, brought to where the runs are made."""

from collections.abc import Iterable

from anchorhold_lab.experiments.specs.source_files import load_content, loaded_source, missing_source
from anchorhold_lab.experiments.specs.spec import Spec
from anchorhold_lab.experiments.store.store import Store


def keep_sources(specs: Iterable[Spec], store: Store) -> dict[str, bytes]:
    """Let a store have the files of runs that are about to be made, and return them by digest.

    A file that was loaded here is added to the store. Another has to be there already, as it is for a run that was
    begun.
    """
    found: dict[str, bytes] = {}
    for spec in specs:
        if spec.source is None or spec.source in found:
            continue
        loaded = loaded_source(spec.source)
        if loaded is not None:
            store.keep_source(loaded.content)
        content = store.source(spec.source) if loaded is None else loaded.content
        if content is None:
            raise missing_source(spec.source, f"Run {spec.id} with the scenario {spec.scenario!r}")
        found[spec.source] = content
    return found


def load_sources(specs: Iterable[Spec], store: Store) -> None:
    """Load the files of runs that are about to be made: those that were asked for, and no others of the store."""
    for digest, content in keep_sources(specs, store).items():
        if loaded_source(digest) is None:
            load_content(content, store.source_path(digest))
