"""Where results come from."""

import re

import torch

import anchorhold
from anchorhold_lab.experiments.store import provenance


def test_versions_and_device_have_names():
    assert provenance.versions()["torch"] == torch.__version__
    assert provenance.versions()["anchorhold"] == anchorhold.__version__
    assert provenance.device_name(torch.device("cpu"))


def test_the_commit_is_one_or_none():
    """A checkout without git, or an installed package, has none."""
    commit = provenance.source_commit()
    assert commit is None or re.fullmatch(r"[0-9a-f]{40}(\+changes)?", commit)


def test_a_package_inside_another_projects_checkout_has_no_commit(tmp_path, monkeypatch):
    package = tmp_path / "site-packages" / "anchorhold"
    package.mkdir(parents=True)
    provenance._git(tmp_path, "init", "--quiet")
    monkeypatch.setattr(anchorhold, "__file__", str(package / "__init__.py"))
    assert provenance.source_commit.__wrapped__() is None
