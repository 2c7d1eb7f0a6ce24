"""Trainings under ``protect()``: what each gains and loses, at several averages and with half of the loss given back.

The model is protected once, with no option. For each setting the guard and the weights are put back to what they were
then, and the exchange rate and the share of distillation are set anew: what was written and measured is the same.
"""

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

import anchorhold
from anchorhold.holds import Distillation
from anchorhold.own_text import OwnText
from anchorhold.protection import ProtectedGuard
from studies.pretrained.losses import DocumentLosses, evaluate
from studies.pretrained.recipes import Recipe
from studies.pretrained.texts import KEPT
from studies.pretrained.tokens import Rows, Tokens
from studies.pretrained.training import OWN_TEXT, Learner, rows_of, steps_of, teach, to_train
from studies.protect_search.settings import AVERAGES, DEFAULT, GIVEN_BACK, Run

JUDGED = 128
"""Rows of own text by which a setting is chosen, and as many others by which it is judged."""
PARTS = ("validation", "test")
Line = dict[str, Any]


@dataclass
class Subject:
    """A pretrained model that is to be protected.

    Args:
        learner: the model, and what it was before any run, with own text that no guard reads.
        tokenizer: of it.
        cache: the folder of ``protect()``'s own texts.
        less: options that make ``protect()`` smaller than it is by default, for a rehearsal.
    """

    learner: Learner
    tokenizer: Any
    cache: Path
    less: Mapping[str, int] = field(default_factory=dict)

    @property
    def model(self) -> nn.Module:
        """The model itself."""
        return self.learner.model

    def written(self) -> OwnText | None:
        """Return the text that the model wrote before it had an adapter, if it is whole."""
        folders = sorted(each.parent for each in self.cache.glob("*/asked.json"))
        if len(folders) > 1:
            raise SystemExit(
                f"{self.cache} has the texts of {len(folders)} models; expected one. Give another --cache."
            )
        return OwnText.load(folders[0], self.tokenizer) if folders else None


def write_text(subject: Subject) -> float:
    """Write own text as ``protect()`` does, into its cache, and return the seconds."""
    began = time.perf_counter()
    told: dict[str, Any] = {"cache": subject.cache, "progress": False, **subject.less}
    anchorhold.protect(subject.model, subject.tokenizer, exchange_rate=0, **told)
    return time.perf_counter() - began


def protected(subject: Subject, recipe: Recipe) -> tuple[ProtectedGuard, list[nn.Parameter]]:
    """Return the guard of ``protect()`` with no option, and what is trained.

    An adapter that begins at 0 changes no output, so the text that its model would write is the one that was written.
    """
    trained = to_train(subject.learner, recipe)
    own: dict[str, Any] = {"cache": subject.cache, **subject.less}
    if recipe.weights == "lora":
        own = {"text": subject.written()}
        if own["text"] is None:
            raise SystemExit("There is no own text yet: run `python -m studies.protect_search write` first.")
    return anchorhold.protect(subject.model, subject.tokenizer, progress=False, **own), trained


def search(
    subject: Subject,
    runs: Sequence[Run],
    write: Callable[[Line], None],
    is_over: Callable[[], bool] = lambda: False,
    keep: Path | None = None,
) -> None:
    """Protect the model, train it in each setting, and write a line for each.

    Args:
        subject: the model, which is as it was before when this returns.
        runs: of one recipe.
        write: is given each line.
        is_over: whether nothing new is to be begun.
        keep: a folder for the model after training with no option, before it is averaged.
    """
    if not runs:
        return
    learner, recipe = subject.learner, runs[0].recipe
    learner.restart()
    texts = {part: _texts(subject, recipe.lesson, part) for part in PARTS}
    before = {part: evaluate(learner.model, texts[part]) for part in PARTS}
    stream = learner.tokens.train[recipe.lesson]
    rows = rows_of(stream, learner.tokens.begin, learner.context).to(learner.device)
    began = time.perf_counter()
    guard, trained = protected(subject, recipe)
    protecting = time.perf_counter() - began
    state = guard.state_dict()
    start = _copied(trained)
    (told,) = (hold for hold in guard.options.holds if isinstance(hold, Distillation))
    common = {
        "weights": learner.digest,
        "tokens": learner.tokens.digest,
        "text": text_digest(guard.samples.text),
        "machine": f"{_name(learner.device)}, torch {torch.__version__}, transformers {transformers.__version__}",
        "date": datetime.now(UTC).date().isoformat(),
        "steps": steps_of(recipe, len(rows)),
        "form": guard.report.form,
        "T": guard.report.scored,
        "protecting": round(protecting, 1),
        "measuring": round(guard.report.seconds_taken, 1),
    }
    for run in runs:
        if is_over():
            break
        began = time.perf_counter()
        _put(trained, start)
        guard.exchange_rate, told.share = DEFAULT.exchange_rate, DEFAULT.share
        guard.load_state_dict(state)
        guard.exchange_rate, told.share = run.setting.exchange_rate, run.setting.share
        teach(learner, recipe, trained, rows, guard, _no_look)
        if keep is not None and run.setting == DEFAULT:
            save_folder(subject, keep)
        took = time.perf_counter() - began
        ends = {str(share): _ends(learner, texts, before) for share in _averages(guard, trained)}
        report = guard.finish(tolerance=GIVEN_BACK * guard.retention().kl)
        ends["finish"] = _ends(learner, texts, before)
        assert report.lost is not None
        assert report.lost_before is not None
        finished = {
            "share": report.share,
            "lost_before": report.lost_before.kl,
            "lost": report.lost.kl,
            "predicted": report.predicted,
        }
        seconds = {"trained": round(took, 1), "seconds": round(time.perf_counter() - began, 1)}
        write(
            {"run": run.name, **run.told(), **common, "c": guard.strength, "finish": finished, "ends": ends, **seconds}
        )
    guard.detach()
    learner.restart()


def _no_look(_: int) -> None:
    """Evaluate nothing on the way."""


def _averages(guard: ProtectedGuard, trained: Sequence[nn.Parameter]) -> Iterator[float]:
    """Yield each average with the weights at it, and put them back to the end of training."""
    end = _copied(trained)
    for share in AVERAGES:
        guard.average(share)
        yield share
        _put(trained, end)


def _texts(subject: Subject, lesson: str, part: str) -> Mapping[str, Rows]:
    """Return what is judged in one part: the lesson, real kept texts, and own text that ``protect()`` has not seen."""
    own = subject.learner.require_own()
    mine = own[:JUDGED] if part == "validation" else own[JUDGED:][-JUDGED:]
    found = subject.learner.tokens.chosen(part, [lesson, *KEPT])
    found |= {OWN_TEXT: Rows(mine, torch.zeros(len(mine), dtype=torch.long))}
    return {text: rows.to(subject.learner.device) for text, rows in found.items()}


def _ends(
    learner: Learner,
    texts: Mapping[str, Mapping[str, Rows]],
    before: Mapping[str, Mapping[str, DocumentLosses]],
) -> Line:
    """Return what a line says of the weights as they are: nats a token, and by how much they have risen."""
    found: Line = {}
    for part in PARTS:
        now = evaluate(learner.model, texts[part])
        found[part] = {}
        for text, losses in now.items():
            (nats, _), (change, error) = losses.per_token(), losses.change(before[part][text])
            found[part][text] = [round(value, 5) for value in (nats, change, error)]
    return found


def save_folder(subject: Subject, folder: Path) -> None:
    """Write the model as it is and its tokenizer in Hugging Face's layout."""
    given: Any = subject.model
    given.save_pretrained(folder)
    subject.tokenizer.save_pretrained(folder)


def text_digest(text: OwnText | None) -> str:
    """Return a digest of own text."""
    found = hashlib.sha256()
    for piece in text.pieces if text is not None else ():
        found.update(piece.tokens.cpu().int().numpy().tobytes())
    return found.hexdigest()[:16]


def _copied(trained: Sequence[nn.Parameter]) -> list[Tensor]:
    return [weight.detach().clone() for weight in trained]


@torch.no_grad()
def _put(trained: Sequence[nn.Parameter], values: Sequence[Tensor]) -> None:
    for weight, value in zip(trained, values, strict=True):
        weight.copy_(value)


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name() if device.type == "cuda" else "CPU"


def documents(tokens: Tokens, tokenizer: Any, text: str, count: int) -> list[str]:
    """Return the first test documents of a text, in words."""
    rows = tokens.rows[text, "test"].tokens[:count]
    return [tokenizer.decode([token for token in row[1:] if token >= 0]) for row in rows.tolist()]
