"""Only named, plain files come out of an archive."""

import io
import tarfile

import pytest

from anchorhold.errors import DataError
from anchorhold_lab.data import unpacking


def archive(folder, *entries):
    path = folder / "things.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for entry, content in entries:
            info = tarfile.TarInfo(entry) if isinstance(entry, str) else entry
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def link(name, kind, target):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def test_named_files_come_out_and_nothing_else(tmp_path):
    path = archive(tmp_path, ("things/a", b"one"), ("../outside", b"x"), ("/tmp/root", b"x"), ("things/b", b"two"))
    target = tmp_path / "deep" / "folder"
    unpacking.unpack(path, target, ["things/a", "things/b"])
    assert {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()} == {
        "things.tar.gz",
        "deep/folder/things/a",
        "deep/folder/things/b",
    }
    assert (target / "things/b").read_bytes() == b"two"


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE])
def test_a_link_or_folder_by_a_wanted_name_is_refused(tmp_path, kind):
    path = archive(tmp_path, (link("things/a", kind, "/etc/passwd"), b""))
    with pytest.raises(DataError, match=r"things/a in .* expected a file"):
        unpacking.unpack(path, tmp_path, ["things/a"])
    assert not (tmp_path / "things").exists()


def test_a_file_that_is_too_large_is_refused_before_it_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(unpacking, "_LARGEST", 1000)
    path = archive(tmp_path, ("things/a", bytes(1001)))
    with pytest.raises(DataError, match="too large"):
        unpacking.unpack(path, tmp_path, ["things/a"])
    assert not (tmp_path / "things").exists()


def test_an_archive_that_never_ends_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(unpacking, "_LARGEST_TOTAL", 1000)
    path = archive(tmp_path, ("filler", bytes(1001)), ("things/a", b"one"))
    with pytest.raises(DataError, match="unpacks to more than 1000 bytes"):
        unpacking.unpack(path, tmp_path, ["things/a"])


def test_a_lacking_file_is_named(tmp_path):
    path = archive(tmp_path, ("things/a", b"one"))
    with pytest.raises(DataError, match="lacks things/b, things/c"):
        unpacking.unpack(path, tmp_path, ["things/a", "things/b", "things/c"])


@pytest.mark.parametrize("how", ["truncated", "not an archive"])
def test_a_damaged_archive_is_refused(tmp_path, how):
    content = bytes(i * i % 251 for i in range(100_000))
    path = archive(tmp_path, ("things/a", content))
    whole = path.read_bytes()
    path.write_bytes({"truncated": whole[: len(whole) // 2], "not an archive": b"hello"}[how])
    with pytest.raises(DataError, match="is not a whole archive"):
        unpacking.unpack(path, tmp_path, ["things/a"])
    assert not (tmp_path / "things" / "a").exists()
    assert not list(tmp_path.rglob("*.part"))
