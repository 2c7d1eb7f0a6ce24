"""The laboratory: everything that makes experiments with the library, which never imports it."""
