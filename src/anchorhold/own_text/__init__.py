"""A language model's own text: written before something new is learned, to stand in for the old data.

For rehearsal and distillation, and as the data for the Fisher information where the old data is gone.
"""

from anchorhold.own_text.text_folder import Kind, Piece
from anchorhold.own_text.write import write_text
from anchorhold.own_text.written_text import OwnText

__all__ = ["Kind", "OwnText", "Piece", "write_text"]
