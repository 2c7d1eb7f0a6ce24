"""Real data, checked by content: MNIST and CIFAR from their authors' files, and the digits that come along."""

from anchorhold_lab.data.digits import digits_dataset
from anchorhold_lab.data.images import Dataset, Images
from anchorhold_lab.data.locations import READERS, data_folder, load

__all__ = ["READERS", "Dataset", "Images", "data_folder", "digits_dataset", "load"]
