import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest

from anchorhold_lab.report import Figure, colour, ink
from anchorhold_lab.report.pictures import render
from tests.lab.report.sample import narrow


def test_the_schemes_differ_in_their_colours_alone():
    seen = []

    def draw(canvas):
        axes = canvas.subplots()
        axes.plot([0, 1], [0, 1], color=colour("SI"))
        seen.append((axes.lines[0].get_color(), ink()))

    pictures = render(Figure("f", "", draw))
    assert seen[0][0] == seen[1][0] == colour("SI")
    assert seen[0][1] != seen[1][1]
    light, dark = pictures.light_svg.decode(), pictures.dark_svg.decode()
    for svg, shade, other in ((light, "#0072b2", "#4fa8e0"), (dark, "#4fa8e0", "#0072b2")):
        assert shade in svg and other not in svg


def test_a_cloud_of_points_is_an_image_within_the_vectors():
    random = np.random.default_rng(0)

    def cloud(points):
        return lambda canvas: canvas.subplots().scatter(*random.normal(size=(2, points)))

    many, few = render(Figure("f", "", cloud(10_000))), render(Figure("f", "", cloud(100)))
    assert b"data:image/png" in many.light_svg and b"data:image/png" not in few.light_svg
    assert max(map(len, (*many.files.values(), many.dark_svg))) < 500_000


def test_every_file_is_of_its_kind():
    files = render(Figure("f", "", narrow)).files
    assert files["png"].startswith(b"\x89PNG") and files["pdf"].startswith(b"%PDF") and b"<svg" in files["svg"]


@pytest.mark.nightly
def test_the_same_figure_is_the_same_file_in_every_process():
    script = (
        "import hashlib; from anchorhold_lab.report.pictures import render; from anchorhold_lab.report import Figure;"
        "from tests.lab.report.sample import narrow; pictures = render(Figure('f', '', narrow));"
        "print(hashlib.sha256(b''.join([*pictures.files.values(), pictures.dark_svg])).hexdigest())"
    )
    pictures = render(Figure("f", "", narrow))
    here = hashlib.sha256(b"".join([*pictures.files.values(), pictures.dark_svg])).hexdigest()
    environment = {**os.environ, "PYTHONHASHSEED": "12345", "SOURCE_DATE_EPOCH": "1"}
    there = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment)
    assert there.stdout.strip() == here
