"""Weights of several models made into one: the form that holds a model, solved once."""

from anchorhold.merging.between import Merging, merge
from anchorhold.merging.choosing import ChosenShare, Tried, choose_share
from anchorhold.merging.lora_files import LoraAdapter, merge_adapters

__all__ = ["ChosenShare", "LoraAdapter", "Merging", "Tried", "choose_share", "merge", "merge_adapters"]
