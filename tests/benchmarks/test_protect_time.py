"""The timing of protect() runs on any local model, and says what was foretold beside what it took."""

import json

import pytest

from benchmarks import protect_time
from tests.integrations import tiny
from tests.protection import language


@pytest.mark.filterwarnings("ignore:.*are ones that importance was measured from")
def test_a_line_for_all_weights_and_one_for_an_adapter(tmp_path, capsys):
    language.taught().save_pretrained(tmp_path)
    tiny.tokenizer().save_pretrained(tmp_path)
    small = ["--tokens", "704", "--length", "11", "--rows", "2", "--row", "8", "--device", "cpu"]
    protect_time.main([str(tmp_path), *small])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert [(line["way"], line["form"]) for line in lines] == [("all weights", "rotated"), ("an adapter", "kronecker")]
    for line in lines:
        assert line["protect_seconds"] > 0 and line["tokens_a_step"] == 16
        assert len(line["first_steps_after_seconds"]) == len(line["plain_step_seconds"]) == protect_time.STEPS
        assert line["text"].startswith("OwnText: 64 pieces")
