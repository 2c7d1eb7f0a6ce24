"""The setting of text: a GPT that has learned English learns Python."""

from pathlib import Path

import torch
from torch import Tensor

from anchorhold.whole_files import read_tensors, write_tensors
from benchmarks.language.corpus import LANGUAGES, Corpus
from benchmarks.language.english import DECAY, new_model
from benchmarks.language.training import Device, batches, bits_per_byte, schedule, spread
from studies.tolerance.at_scale.held import Judged, Old
from studies.tolerance.at_scale.trials import Setting

TOGETHER = 8
"""Pieces of text that go through the network together where it is looked at: a look is at so many."""


class Text:
    """One seed: the network that has learned English, and what it is taught and judged by."""

    def __init__(self, setting: Setting, seed: int, corpus: Corpus, device: Device) -> None:
        assert setting.language is not None
        self.setting, self.seed, self.device = setting, seed, device
        self.sizes = setting.language
        self.corpus = corpus
        self.model = new_model(self.sizes, device, seed)

    def learn_first(self, path: Path) -> None:
        """Learn English, and write the network down."""
        optimizer = self.device.optimizer(self.model, self.sizes.english_rate, DECAY)
        text = self.corpus.of("english", "train")
        sizes = self.sizes
        self._train(optimizer, text, sizes.english_steps, sizes.english_batch, "english")
        write_tensors(path, {name: tensor.cpu() for name, tensor in self.model.state_dict().items()}, {})

    def load(self, path: Path) -> None:
        """Go back to the network as it was after English."""
        tensors, _ = read_tensors(path)
        self.model.load_state_dict(tensors)

    protect: str | None = None

    @property
    def old(self) -> Old:
        """English to measure importance on, to keep and to judge by."""
        text, apart = self.corpus.of("english", "train"), self.corpus.of("english", "validation")
        measured = next(batches(text, 1, self.setting.measured, self.sizes.context, self.seed, "measured"))[:, :-1]
        kept, fresh = self._apart(apart)
        return Old(list(measured.split(64)), list(kept.split(TOGETHER)), list(fresh.split(TOGETHER)), None)

    def optimizer(self, name: str) -> torch.optim.Optimizer:
        """Return the optimiser of Python."""
        rate = self.setting.rates[name]
        if name == "SGD":
            return torch.optim.SGD(self.model.parameters(), rate, momentum=0.9)
        return self.device.optimizer(self.model, rate, decay=0.0)

    def learn_second(self, optimizer: torch.optim.Optimizer) -> None:
        """Learn Python."""
        text = self.corpus.of("python", "train")
        self._train(optimizer, text, self.sizes.python_steps, self.sizes.python_batch, "python")

    def judged(self) -> Judged:
        """Return the losses on text kept apart, of English and of Python, in bits a byte."""
        parts = [self.corpus.of(language, "validation") for language in LANGUAGES]
        pieces = [spread(part, self.sizes.windows, self.sizes.context) for part in parts]
        return Judged(*(bits_per_byte(self.device, self.model, each) for each in pieces))

    def _train(self, optimizer: torch.optim.Optimizer, text: Tensor, steps: int, batch: int, purpose: str) -> None:
        rates = schedule(optimizer, steps)
        self.model.train()
        for piece in batches(text, steps, batch, self.sizes.context, self.seed, purpose):
            optimizer.zero_grad()
            self.device.loss(self.model, piece).backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            optimizer.step()
            rates.step()

    def _apart(self, text: Tensor) -> tuple[Tensor, Tensor]:
        """Return pieces to keep and pieces to judge by, none of which overlap, both from everywhere in a text.

        Its first and second half would be of two kinds: fine-tuning loses twice as much of one as of the other.
        """
        count, context = self.setting.kept + self.setting.fresh, self.sizes.context
        starts = torch.linspace(0, len(text) - context - 1, count, dtype=torch.float64).long()
        if count > 1 and int(starts.diff().min()) < context:
            raise SystemExit(f"{len(text)} bytes of English are kept apart, too few for {count} pieces of {context}.")
        pieces = text[starts.to(text.device)[:, None] + torch.arange(context, device=text.device)].long()
        every = count // self.setting.kept
        is_kept = (torch.arange(count) % every == 0) & (torch.arange(count) // every < self.setting.kept)
        return pieces[is_kept], pieces[~is_kept]
