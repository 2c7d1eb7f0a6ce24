"""Formulas as MathML, which browsers draw by themselves: no script, no font and no network.

Sphinx's own renderers either fetch MathJax when a page is read or need a TeX installation when it is made.
"""
# ruff: noqa: INP001 (Sphinx finds extensions on a path, not in a package)

import re
from html import escape
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.util.logging import getLogger
from sphinx.writers.html5 import HTML5Translator

logger = getLogger(__name__)

REPAIRS = {
    "<mi>&#x0007E;</mi>": "<mo>&#x0223C;</mo>",  # \sim is a relation, not a tilde from the keyboard
    "negativethinmathspace": "-0.167em",  # browsers know lengths alone, not MathML 3's names for them
    '<mo stretchy="false">&#x0007E;</mo></mover>': '<mo stretchy="false">&#x002DC;</mo></mover>',  # \tilde as an accent
    "<mo>&#x0002A;</mo>": "<mo>&#x02217;</mo>",  # in a formula, a star stands in the middle and is not raised by itself
    "<mi>log</mi>": '<mo lspace="0.167em" rspace="0.167em">log</mo>',  # which stands apart from what it is applied to
}

# Bars around something stand close to it. Between two things, a browser takes them for a relation, with room around it.
BAR = re.compile(r"<mo(?P<how>(?: (?!form=)[^> ]+)*)>(?P<bar>&#x0007C;|&#x02016;)</mo>")
# A prime is raised by itself. As an exponent it is drawn too small and too high by most fonts.
PRIME = re.compile(r"<msup>(<mi>[^<]*</mi>)<mi>&#x02032;</mi></msup>")


def to_mathml(node: nodes.math | nodes.math_block, display: str) -> str:
    """Return a formula as a ``<math>`` element; one that cannot be read whole is a warning."""
    latex = node.astext().strip()
    try:
        made = convert(latex, display=display)
    except Exception as error:  # noqa: BLE001 (the converter's errors have no class in common)
        logger.warning("formula %r: %s %s", latex, type(error).__name__, error, location=node)
        return f"<code>{escape(latex)}</code>"
    if "\\" in made or "<mi>&</mi>" in made:  # what it does not know, it copies
        logger.warning("formula %r: latex2mathml does not know all of it: %s", latex, made, location=node)
    for wrong, right in REPAIRS.items():
        made = made.replace(wrong, right)
    made = PRIME.sub(r'<mrow>\1<mo lspace="0em" rspace="0em">&#x02032;</mo></mrow>', made)
    made = BAR.sub(r'<mo\g<how> lspace="0em" rspace="0em">\g<bar></mo>', made)
    return made.replace("<math ", f'<math aria-label="{escape(latex)}" ', 1)


def visit_math(self: HTML5Translator, node: nodes.math) -> None:
    """Write a formula within a line."""
    self.body.append(to_mathml(node, "inline"))
    raise nodes.SkipNode


def visit_displayed_math(self: HTML5Translator, node: nodes.math_block) -> None:
    """Write a formula on a line of its own, which scrolls where the page is too narrow for it."""
    self.body.append(f'<div class="formula">{to_mathml(node, "block")}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    """Enter the renderer under the name that ``html_math_renderer`` asks for."""
    app.add_html_math_renderer(
        "mathml", inline_renderers=(visit_math, None), block_renderers=(visit_displayed_math, None)
    )
    return {"parallel_read_safe": True, "parallel_write_safe": True}
