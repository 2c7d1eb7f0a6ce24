"""A piece of text that a model wrote, and what pieces have in common: what a folder keeps and a data set has."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Piece:
    """One text.

    Args:
        number: which it is; a piece depends on the seed and on its number alone.
        tokens: of all of it, ``[T]``, with the beginning and the end token if there is one.
        begun: how many of them are the beginning, which was given.
        log_probabilities: of the tokens that were written, in nats, as the model has them: at temperature 1, of all
            tokens.
        top_tokens: the most probable tokens in the place of each that was written, ``[T − begun, k]``, where asked for.
        top_log_probabilities: theirs.
    """

    number: int
    tokens: Tensor
    begun: int
    log_probabilities: Tensor
    top_tokens: Tensor | None = None
    top_log_probabilities: Tensor | None = None

    @property
    def written(self) -> Tensor:
        """The tokens that were written."""
        return self.tokens[self.begun :]


@dataclass(frozen=True)
class Kind:
    """What pieces have in common.

    Args:
        ends: tokens that end a piece; none if there are none.
        padding: the token that stands where a piece of a batch is over; no label and no mask counts it.
        named: whether the batches are those of one of Hugging Face's models, which have names.
    """

    ends: tuple[int, ...] = ()
    padding: int = 0
    named: bool = True
