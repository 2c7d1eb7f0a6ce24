"""Where the data sets are published, and what their files are known by."""

from dataclasses import dataclass

from anchorhold_lab.data.cifar import FOLDER_10, FOLDER_100, PICKLES_10, PICKLES_100
from anchorhold_lab.data.mnist import FOLDER


@dataclass(frozen=True)
class Download:
    """One published file.

    Args:
        path: its place in the data folder; its last part is the name on every mirror.
        size: its length in bytes.
        md5: its published checksum.
        members: for an archive, the files that it is unpacked for, by their place in the data folder.
    """

    path: str
    size: int
    md5: str
    members: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What the file is called on every mirror."""
        return self.path.rpartition("/")[2]


@dataclass(frozen=True)
class PublishedFiles:
    """A data set's published files.

    Args:
        mirrors: the addresses that offer all of them, tried in this order.
        downloads: the files.
        read_too: a file of another version, which is read where these files are not.
    """

    mirrors: tuple[str, ...]
    downloads: tuple[Download, ...]
    read_too: str | None = None

    @property
    def files(self) -> tuple[str, ...]:
        """The files that the data folder ends up with."""
        return tuple(path for download in self.downloads for path in download.members or (download.path,))


_TORONTO = ("https://www.cs.toronto.edu/~kriz/",)

SOURCES = {
    "MNIST": PublishedFiles(
        ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
        (
            Download(f"{FOLDER}/train-images-idx3-ubyte.gz", 9912422, "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
            Download(f"{FOLDER}/train-labels-idx1-ubyte.gz", 28881, "d53e105ee54ea40749a09fcbcd1e9432"),
            Download(f"{FOLDER}/t10k-images-idx3-ubyte.gz", 1648877, "9fb629c4189551a2d022fa330f9573f3"),
            Download(f"{FOLDER}/t10k-labels-idx1-ubyte.gz", 4542, "ec29112dd5afa0611ce80d1b7f02629c"),
        ),
    ),
    "CIFAR-10": PublishedFiles(
        _TORONTO,
        (
            Download(
                "cifar-10-binary.tar.gz",
                170052171,
                "c32a1d4ab5d03f1284b67883e8d87530",
                (*(f"{FOLDER_10}/data_batch_{i}.bin" for i in range(1, 6)), f"{FOLDER_10}/test_batch.bin"),
            ),
        ),
        f"{PICKLES_10}/data_batch_1",
    ),
    "CIFAR-100": PublishedFiles(
        _TORONTO,
        (
            Download(
                "cifar-100-binary.tar.gz",
                168513733,
                "03b5dce01913d631647c71ecec9e9cb8",
                (f"{FOLDER_100}/train.bin", f"{FOLDER_100}/test.bin"),
            ),
        ),
        f"{PICKLES_100}/train",
    ),
}
