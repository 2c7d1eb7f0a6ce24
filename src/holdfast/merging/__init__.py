"""Weights of several models made into one: the form that holds a model, solved once."""

from holdfast.merging.lora_files import LoraAdapter, merge_adapters
from holdfast.merging.merge import Merging, merge

__all__ = ["LoraAdapter", "Merging", "merge", "merge_adapters"]
