"""Observers that note what happens in a run."""
