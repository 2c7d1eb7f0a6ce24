"""The picture at the front shows what the tables say, and is drawn from results that are there."""

from pathlib import Path

from benchmarks.language import recipes
from studies import front_picture
from studies.benzing2020.searches_page import settings_tried

ROOT = Path(__file__).parents[2]


def test_its_bars_are_those_of_the_evidence():
    found = front_picture.losses(recipes.read(ROOT / "results" / "recipes.jsonl"))
    evidence = (ROOT / "docs" / "guides" / "does-it-help.md").read_text(encoding="utf-8")
    assert f"| fine-tuning alone, at 100 % | | {found.pop('fine-tuning alone'):.3f} ± " in evidence
    assert list(found) == list(front_picture.BARS)
    table = evidence[evidence.index("## All of it together") : evidence.index("on three networks more")]
    for lost in found.values():
        assert f" | {lost:.3f} ± " in table or f" **{lost:.3f} ± " in table


def test_each_line_is_the_best_of_as_many_searches_and_the_pages_say_of_how_many_settings():
    results = front_picture.ten_tasks(ROOT / "results" / "paper" / "store")
    tried = {}
    for label in ("EWC", "rotated EWC"):
        names = front_picture.LINES[label]
        assert len(names) == 4
        chosen = front_picture.best(results, names)
        means = {name: results.accuracy("P-MNIST", name).mean for name in names}
        assert means[chosen] == max(means.values()) > min(means.values())
        tried[label] = sum(settings_tried(results, "P-MNIST", name) for name in names)
    said = f"best of {tried['EWC']} settings of EWC and of {tried['rotated EWC']} of rotated EWC"
    for page in ("README.md", "docs/guides/forms.md"):
        assert said in " ".join((ROOT / page).read_text(encoding="utf-8").split()), page


def test_its_lines_end_where_the_recipes_say(tmp_path):
    results = front_picture.ten_tasks(ROOT / "results" / "paper" / "store")
    found = front_picture.kept(results)
    said = (ROOT / "docs" / "guides" / "recipes.md").read_text(encoding="utf-8")
    rotated, diagonal, free = (found[name][:, -1].mean() for name in ("rotated EWC", "EWC", "fine-tuning"))
    assert f"end at {rotated:.1f} %, with EWC's diagonal at {diagonal:.1f}, by fine-tuning at {free:.1f} |" in said
    front_picture.draw(dict.fromkeys(["fine-tuning alone", *front_picture.BARS], 0.1), found, tmp_path / "front.png")
    assert (tmp_path / "front.png").read_bytes().startswith(b"\x89PNG")
