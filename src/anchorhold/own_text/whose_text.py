"""Whether a text is a model's own: the log-probabilities that were kept with it are those that the model gives now."""

from anchorhold.errors import StateError
from anchorhold.own_text.model_reader import Writer
from anchorhold.own_text.written_text import OwnText

COMPARED = 4
"""Pieces whose log-probabilities are compared with the model's."""
APART = 0.05
"""How far they may be apart, in nats a token, as rounding and other kernels make it."""


def refuse_text_of_another(text: OwnText, writer: Writer, name: str, instead: str) -> None:
    """Raise StateError for text that a model, which is in eval mode, did not write as it is now.

    Args:
        text: that was given.
        writer: the model.
        name: of the text, for the message.
        instead: what to give in its place, a sentence.
    """
    for piece in text.pieces[:COMPARED]:
        tokens = piece.tokens.to(writer.device)[None]
        vocabulary = 0
        try:
            logits = writer.logits(tokens)[0].double()
            vocabulary = logits.shape[-1]
            own = logits.log_softmax(-1)[piece.begun - 1 : -1].gather(1, tokens[0, piece.begun :, None]).cpu()
            apart = float((own[:, 0] - piece.log_probabilities.double()).abs().mean())
        except (IndexError, RuntimeError):
            apart = float("inf")
        if not apart <= APART:
            said = f"apart by {apart:.2g} nats a token" if vocabulary else "of tokens that it does not know"
            raise StateError(
                f"{name} was not written by this model as it is now: the log-probabilities of piece {piece.number} are "
                f"{said}. {instead}"
            )
