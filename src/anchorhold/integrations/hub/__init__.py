"""Importance that is shared: a folder, or a repository of Hugging Face's hub, for others who train the same model."""

from anchorhold.integrations.hub.importance_files import from_pretrained, push_to_hub, save_pretrained

__all__ = ["from_pretrained", "push_to_hub", "save_pretrained"]
