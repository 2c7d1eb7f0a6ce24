"""The settings of the documentation site: ``python -m sphinx -W --keep-going -n docs build/docs``."""
# ruff: noqa: INP001 (Sphinx reads this file where it lies)

import sys
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.ext.napoleon import Config, GoogleDocstring
from sphinx.util.inspect import signature, stringify_signature

import anchorhold

sys.path.insert(0, str(Path(__file__).parent / "extensions"))

project = "anchorhold"
author = "the anchorhold authors"
version = release = anchorhold.__version__

extensions = ["mathml", "myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]
exclude_patterns = ["extensions"]

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
html_math_renderer = "mathml"

html_theme = "furo"
html_title = "anchorhold"
html_static_path = ["_static"]
html_css_files = ["anchorhold.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
pygments_dark_style = "github-dark"

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True}
# Extras need not be installed to be written about, and take long to import.
autodoc_mock_imports = ["accelerate", "lightning", "peft", "ray", "transformers", "trl"]

# There is no network to look others' pages up on, so names of other packages stay plain text.
nitpick_ignore_regex = [
    (r"py:class", r"(?!anchorhold\b).*"),  # as types in signatures are written, with their package or without
    (r"py:class", r"anchorhold\.(models\.dropout|variational\.mean_field)\.Model"),  # type variables
    (r"py:.*", r"(lightning|numpy|pandas|ray|torch|transformers)\..*"),
]


def read_google_style(
    app: Sphinx, what: str, name: str, obj: object, options: dict[str, Any], lines: list[str]
) -> None:
    """Read a docstring's sections, except where it is one sentence about a value.

    The napoleon extension does it for attributes too, and takes what stands before a colon there for a type.
    """
    if what not in ("attribute", "data", "property"):
        lines[:] = GoogleDocstring(lines, Config(), app, what, name, obj, options).lines()


def read_signature(
    _app: Sphinx, what: str, _name: str, obj: type, _options: dict[str, Any], shown: str | None, returned: str | None
) -> tuple[str, str | None] | None:
    """Return a class's own arguments where its base is an extra's class, whose stand-in takes anything."""
    if what != "class" or shown != "(*args, **kwargs)":
        return None
    return stringify_signature(signature(obj.__init__, bound_method=True), show_annotation=False), returned


def setup(app: Sphinx) -> None:
    """Enter what this file adds to Sphinx."""
    app.connect("autodoc-process-docstring", read_google_style)
    app.connect("autodoc-process-signature", read_signature)
