"""Real data, checked by content: MNIST and CIFAR from their authors' files, and the digits that come along."""

from holdfast.lab.data.digits import digits_dataset, load_digits
from holdfast.lab.data.images import Dataset, Images
from holdfast.lab.data.locations import READERS, data_folder, load

__all__ = ["READERS", "Dataset", "Images", "data_folder", "digits_dataset", "load", "load_digits"]
