"""A guard that a trainer was given in the place of its callback: what the trainer asks for first says which to give."""

from typing import NoReturn

_GIVE = (
    "A {kind} is no callback of a trainer by itself. Give {trainer} its callback: "
    "callbacks=[AnchorholdCallback(guard)], from anchorhold.integrations.{module}."
)


class NotACallback:
    """What trainers look up first of each of their callbacks, missing here with a word of what to give."""

    @property
    def on_init_end(self) -> NoReturn:
        """What Hugging Face's Trainer calls."""
        raise self._missing("Hugging Face's Trainer", "huggingface")

    @property
    def on_train_begin(self) -> NoReturn:
        """What it calls first of a callback that it was given later, by ``add_callback``."""
        raise self._missing("Hugging Face's Trainer", "huggingface")

    @property
    def state_key(self) -> NoReturn:
        """What Lightning's Trainer tells callbacks apart by."""
        raise self._missing("Lightning's Trainer", "lightning")

    def _missing(self, trainer: str, module: str) -> AttributeError:
        return AttributeError(_GIVE.format(kind=type(self).__name__, trainer=trainer, module=module))
