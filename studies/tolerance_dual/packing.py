"""The pictures and the text of three settings, as a few files of together 50 MiB: what a card without data is given.

Pictures are a part of MNIST and CIFAR. Neighbouring pixels are much alike, so that their differences pack to three
fifths.
"""

import itertools
import lzma
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from anchorhold.whole_files import write_whole
from anchorhold_lab.data import Dataset, Images
from anchorhold_lab.data.locations import Datasets
from benchmarks.language import corpus

Bytes = npt.NDArray[np.uint8]
COUNTS = {"MNIST": (40_000, 6_000), "CIFAR-10": (8_000, 2_500), "CIFAR-100": (5_000, 1_000)}
"""How many pictures to train on and to test on; of CIFAR-100 those of its first ten classes, all there are."""
NEEDED = {"permuted-mnist": ("MNIST",), "split-cifar": ("CIFAR-10", "CIFAR-100"), "english-python": ()}
"""The data sets of each setting."""
BYTES = {
    ("english", "train"): 14_000_000,
    ("english", "validation"): 1_000_000,
    ("python", "train"): 5_000_000,
    ("python", "validation"): 500_000,
}
CORPUS = "corpus.npz"


def pack(data: Path, text: Path | None, folder: Path, part: int = 1, settings: Iterable[str] = NEEDED) -> None:
    """Write the pieces of the settings' data sets, and of a corpus.

    Args:
        data: the folder that holds MNIST and CIFAR.
        text: a corpus, as ``python -m benchmarks.language prepare`` makes it; None to write none.
        folder: where the pieces go.
        part: one in so many is taken; more than 1 for a rehearsal.
        settings: whose data are packed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    datasets = Datasets(data)
    for name in itertools.chain.from_iterable(NEEDED[setting] for setting in settings):
        for images, count, kind in zip(
            (datasets[name].train, datasets[name].test), COUNTS[name], ("train", "test"), strict=True
        ):
            chosen = torch.nonzero(images.labels < 10).flatten()[: count // part]
            content = _differences(images.pixels[chosen].numpy()).tobytes()
            content += images.labels[chosen].numpy().astype(np.uint8).tobytes()
            write_whole(folder / f"{name}-{kind}.xz", lzma.compress(content, preset=6))
    if text is not None:
        whole = corpus.load(text)
        texts = {key: whole.texts[key][: size // part] for key, size in BYTES.items()}
        corpus.write(folder / CORPUS, corpus.Corpus(texts))


def datasets_in(folder: Path, setting: str) -> dict[str, Dataset]:
    """Return a setting's data sets, from a folder that :func:`pack` wrote."""
    kinds = ("train", "test")
    return {name: Dataset(name, *(_images(folder, name, kind) for kind in kinds)) for name in NEEDED[setting]}


def _images(folder: Path, name: str, kind: str) -> Images:
    content = np.frombuffer(lzma.decompress((folder / f"{name}-{kind}.xz").read_bytes()), np.uint8)
    shape = (1, 28, 28) if name == "MNIST" else (3, 32, 32)
    count = len(content) // (int(np.prod(shape)) + 1)
    pixels, labels = content[:-count].reshape(count, *shape), content[-count:]
    classes = 100 if name == "CIFAR-100" else 10
    return Images(torch.from_numpy(_whole(pixels)), torch.from_numpy(labels.astype(np.int64)), classes)


def _differences(pixels: Bytes) -> Bytes:
    """Return red and blue less green, less the neighbours to the left, less those above, all modulo 256."""
    own = pixels.copy()
    if own.shape[1] == 3:
        own[:, [0, 2]] -= pixels[:, [1]]
    for axis in (3, 2):
        own = np.diff(own, axis=axis, prepend=np.uint8(0))
    return own


def _whole(differences: Bytes) -> Bytes:
    """Return the pixels that :func:`_differences` was given."""
    own = differences
    for axis in (2, 3):
        own = np.cumsum(own, axis=axis, dtype=np.uint8)
    if own.shape[1] == 3:
        own[:, [0, 2]] += own[:, [1]]
    return own
