"""Colours that everyone can tell apart, on either background."""

from itertools import combinations

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.colors import to_hex, to_rgb

from anchorhold_lab.report import colour, ink, label
from anchorhold_lab.report.colours import told_apart
from anchorhold_lab.report.style import style

SHOWN_TOGETHER = (
    ("SI", "SIU", "full gradient", "decrease in loss"),
    ("SI", "SIB", "SIU", "SOS"),
    ("MAS", "MASX", "AF", "sqrtFisher"),
    ("diagonal", "rotated", "Kronecker", "fine-tuning"),
)
# How the three receptors' lack shows in linear RGB, after Machado, Oliveira and Fernandes (2009).
SIGHTS = {
    "full": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def linear(name):
    rgb = np.array(to_rgb(name))
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    x, y, z = np.cbrt(np.clip(TO_XYZ @ rgb, 1e-6, None) / (0.9505, 1.0, 1.089))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def contrast(a, b):
    high, low = sorted((TO_XYZ[1] @ linear(name) for name in (a, b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("sight", SIGHTS)
@pytest.mark.parametrize("names", SHOWN_TOGETHER)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_what_is_shown_together_differs_for_every_eye(scheme, names, sight):
    with style(scheme):
        seen = {name: lab(SIGHTS[sight] @ linear(colour(name))) for name in names}
    for a, b in combinations(names, 2):
        assert np.linalg.norm(seen[a] - seen[b]) > 18, (a, b)  # 2 is what an eye can just tell apart


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everything_stands_out_from_its_background(scheme):
    with style(scheme):
        paper = mpl.rcParams["figure.facecolor"]
        for name in {name for names in SHOWN_TOGETHER for name in names} | {"EWC", "something else"}:
            assert contrast(colour(name), paper) > 2.7, name
        assert contrast(ink(), paper) > 10


def test_a_variant_has_the_colour_of_its_measure_and_a_stranger_none():
    assert colour("SI(2048)") == colour("SI, all tasks") == colour("SI:other") == colour("SI") != colour("SIU")
    assert colour("MAS-logits") == colour("MAS") != colour("MASX")
    assert colour(label("sqrtFisher")) == colour("sqrtFisher") != colour("nobody")
    assert colour("rotated EWC, few samples") == colour("rotated") != colour("Kronecker")
    assert colour("nobody") == colour("nothing") not in {colour("SI"), colour("SOS")}


@pytest.mark.parametrize("name", sorted({name for names in SHOWN_TOGETHER for name in names}))
def test_a_name_as_the_paper_writes_it_has_the_same_colour(name):
    assert colour(label(name)) == colour(name)


def test_names_as_the_paper_writes_them():
    assert label("sqrtFisher") == "√Fisher"
    assert label("SI(2048)") == "SI(2048)"


def test_the_style_ends_with_its_context():
    before = dict(mpl.rcParams)
    with style("dark"):
        assert dict(mpl.rcParams) != before
    assert dict(mpl.rcParams) == before


METHODS = (
    *("SI", "rotated EWC", "EWC", "EWC with a tolerance", "fine-tune", "EWC + replay", "posterior", "kronecker EWC"),
    *("MAS", "rotated MAS"),
)


def test_methods_that_are_drawn_together_have_colours_that_can_be_told_apart():
    found = told_apart(METHODS)
    assert len(set(found.values())) == len(METHODS)
    for a, b in combinations(METHODS, 2):
        assert np.linalg.norm(lab(linear(found[a])) - lab(linear(found[b]))) > 18, (a, b)
    assert all(contrast(shade, "white") > 2.5 for shade in found.values())


def test_a_method_has_its_own_colour_whoever_is_drawn_first():
    with style("light"):
        own = {
            name: to_hex(mpl.rcParams["axes.prop_cycle"].by_key()["color"][int(colour(name)[1:])])
            for name in ("SI", "EWC")
        }
    for order in (METHODS, METHODS[::-1]):
        found = told_apart(order)
        assert list(found) == list(order) and found == told_apart(METHODS)
        assert (found["SI"], found["EWC"]) == (own["SI"], own["EWC"])
    assert (
        told_apart(["rotated EWC"])["rotated EWC"] == "#0a7fa8" and told_apart(["fine-tune"])["fine-tune"] == "#9a9a9a"
    )
