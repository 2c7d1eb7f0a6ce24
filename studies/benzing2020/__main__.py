"""``python -m studies.benzing2020``: the reproduction's command line."""

from anchorhold_lab.cli import prepare, run

prepare()

from studies.benzing2020.command import app  # noqa: E402 (after the handler of Ctrl-C, since it takes a while)

run("python -m studies.benzing2020", app)
