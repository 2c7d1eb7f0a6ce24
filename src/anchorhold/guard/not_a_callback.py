"""A guard that a trainer was given in the place of its callback: what the trainer asks for first says which to give."""

from typing import TYPE_CHECKING, Any

_TRAINERS = {
    "on_init_end": ("Hugging Face's Trainer", "huggingface"),
    "on_train_begin": ("Hugging Face's Trainer", "huggingface"),  # first asked for after add_callback
    "state_key": ("Lightning's Trainer", "lightning"),
}
"""The trainer, and the module of its callback, by what that trainer looks up first of each of its callbacks."""


class NotACallback:
    """Tell a trainer that was given a guard which callback to give in its place."""

    if not TYPE_CHECKING:  # a type checker would take every name for an attribute that there is

        def __getattr__(self, name: str) -> Any:
            """Say of the names in which trainers look what to give; any other error stays what it is."""
            if name not in _TRAINERS:
                return object.__getattribute__(self, name)
            trainer, module = _TRAINERS[name]
            raise AttributeError(
                f"A {type(self).__name__} is no callback of a trainer by itself. Give {trainer} its callback: "
                f"callbacks=[AnchorholdCallback(guard)], from anchorhold.integrations.{module}."
            )
