"""The 8×8 handwritten digits of the UCI repository's test set, as scikit-learn ships them: 1797 images, 10 classes.

E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, 1998 (CC BY 4.0;
see NOTICE). Tutorials, examples and the laboratory train on them without a download.
"""

from importlib.resources import files

import numpy as np
import torch
from torch import Tensor

_BRIGHTEST = 16


def load_digits() -> tuple[Tensor, Tensor]:
    """Return the images as ``[1797, 8, 8]`` floats from 0 to 1, and their labels."""
    with (files("anchorhold") / "digits.npz").open("rb") as file, np.load(file, allow_pickle=False) as archive:
        images, labels = archive["images"], archive["labels"]
    return torch.from_numpy(images).float() / _BRIGHTEST, torch.from_numpy(labels).long()
