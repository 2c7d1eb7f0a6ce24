"""Importance that is shared: a folder, and a repository of a hub that a server on this machine stands for."""

import base64
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
import yaml
from safetensors import safe_open

import holdfast
from holdfast.integrations.hub import from_pretrained, push_to_hub, save_pretrained
from holdfast.integrations.hub.importance_files import CARRIED
from tests.guard.helpers import batch, loss, net

ABOUT = {"measured_from": "eight samples | of noise", "base_model": "someone/small"}
COMMIT = "1" * 40


class Hub(BaseHTTPRequestHandler):
    """As much of the hub's protocol as a push and a download take: text goes into the commit, tensors by LFS."""

    def do_POST(self):
        path, body = self.path.partition("?")[0], self._body()
        if path == "/api/repos/create":
            self._answer({"url": f"{self.server.address}/someone/importance", "name": "someone/importance"})
        elif path == "/api/validate-yaml":
            front = yaml.safe_load(json.loads(body)["content"].split("---")[1])
            assert front["library_name"] == "holdfast"
            self._answer({"errors": [], "warnings": []})
        elif path.endswith("/preupload/main"):
            files = json.loads(body)["files"]
            modes = {True: "lfs", False: "regular"}
            told = [
                {"path": f["path"], "uploadMode": modes[f["path"].endswith(".safetensors")], "shouldIgnore": False}
                for f in files
            ]
            self._answer({"files": told})
        elif path.endswith("/info/lfs/objects/batch"):
            asked = json.loads(body)["objects"]
            places = [{"upload": {"href": f"{self.server.address}/store/{each['oid']}"}} for each in asked]
            told = [{**each, "actions": place} for each, place in zip(asked, places, strict=True)]
            self._answer({"transfer": "basic", "objects": told})
        elif path.endswith("/commit/main"):
            for line in body.splitlines():
                entry = json.loads(line)
                value = entry["value"]
                if entry["key"] == "file":
                    self.server.files[value["path"]] = base64.b64decode(value["content"])
                elif entry["key"] == "lfsFile":
                    self.server.files[value["path"]] = self.server.store[value["oid"]]
            self._answer(
                {"commitUrl": f"{self.server.address}/someone/importance/commit/{COMMIT}", "commitOid": COMMIT}
            )
        else:
            self._answer({"error": "unknown"}, 404)

    def do_PUT(self):
        content = self._body()
        assert self.path == f"/store/{hashlib.sha256(content).hexdigest()}"
        self.server.store[self.path.rpartition("/")[2]] = content
        self._answer({})

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        found = re.fullmatch(r"/someone/importance/resolve/[^/]+/([\w.]+)", self.path.partition("?")[0])
        if found is None or found[1] not in self.server.files:
            self._answer({"sha": COMMIT, "siblings": []}, 200 if self.path.startswith("/api/models/") else 404)
            return
        content = self.server.files[found[1]]
        self.send_response(200)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def _body(self):
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            content = b""
            while size := int(self.rfile.readline(), 16):
                content += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return content
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _answer(self, told, status=200):
        content = json.dumps(told).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture
def hub(monkeypatch, tmp_path):
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # chunks of its own, and its own server
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.address = f"http://127.0.0.1:{server.server_port}"
    server.files, server.store = {}, {}
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def measured(form="rotated", **options):
    model = net()
    guard = holdfast.Consolidator(model, holdfast.Fisher(samples=6), 3.0, "0.*", form=form, **options)
    guard.consolidate([batch(0)])
    return model, guard


def penalty_away(guard):
    with torch.no_grad():
        for number, parameter in enumerate(guard.model.parameters()):
            parameter.add_(0.1 * (number + 1))
    return guard.penalty(batches=False).item()


@pytest.mark.parametrize("form", ["diagonal", "rotated", "kronecker"])
def test_a_folder_makes_a_guard_that_holds_as_the_first_did(form, tmp_path):
    _, guard = measured(form)
    save_pretrained(guard, tmp_path / "made" / "here", **ABOUT)
    other = from_pretrained(tmp_path / "made" / "here", net(), strength=3.0)
    assert other.measures == guard.measures
    assert list(other.parameters) == ["0.weight", "0.bias"]
    assert penalty_away(other) == penalty_away(guard) > 0
    optimizer = torch.optim.SGD(other.model.parameters(), lr=0.01)
    other.attach(optimizer)
    loss(other.model, batch(1)).backward()
    optimizer.step()
    other.consolidate([batch(1)])
    assert other.tasks == 2


def test_nothing_of_the_data_goes_along(tmp_path):
    """Nor of the holds, the kept inputs and a task that is on its way."""
    holds = [holdfast.Replay(6), holdfast.Distillation(6, name="distilled")]
    model, guard = measured("diagonal", holds=holds, watch=["SI"])
    guard.keep([batch(3)[0]], "old")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    guard.attach(optimizer)
    loss(model, batch(1)).backward()
    optimizer.step()
    save_pretrained(guard, tmp_path, **ABOUT)
    with safetensors_of(tmp_path / "importance.safetensors") as file:
        names, about = set(file.keys()), json.loads(file.metadata()["holdfast"])
    assert names == {f"{kind}/{name}" for kind in ("anchor", "total/EWC") for name in ("0.weight", "0.bias")}
    assert set(about) <= {*CARRIED, "strength", "steps", "driver", "measures", "tensor_count", "sha256"}
    assert about["steps"] == {}
    text = (tmp_path / "README.md").read_text()
    assert "| measured from | eight samples \\| of noise |" in text
    assert 'base_model: "someone/small"' in text
    assert "25 weights" in text


def safetensors_of(path):
    return safe_open(path, "pt")


@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # of the hub's own library, about itself
def test_a_push_and_a_download(hub, tmp_path):
    model, guard = measured()
    where = push_to_hub(guard, "someone/importance", token="hf_x", endpoint=hub.address, **ABOUT)
    assert COMMIT in where
    assert sorted(hub.files) == ["README.md", "holdfast.json", "importance.safetensors"]
    other = from_pretrained("someone/importance", net(), strength=3.0, endpoint=hub.address, token="hf_x")
    assert penalty_away(other) == penalty_away(guard)
    with pytest.raises(holdfast.StateError, match="'someone/other' is no folder here, and could not be had"):
        from_pretrained("someone/other", model, endpoint=hub.address, token="hf_x")


def test_what_would_mislead_is_refused_or_told(tmp_path):
    fresh = holdfast.Consolidator(net(), "EWC")
    with pytest.raises(holdfast.OrderError, match="no importance to be shared"):
        save_pretrained(fresh, tmp_path, **ABOUT)
    _, guard = measured()
    with pytest.raises(holdfast.ConfigurationError, match="expected a few words on the data"):
        save_pretrained(guard, tmp_path, measured_from=" ")
    save_pretrained(guard, tmp_path, **ABOUT)
    with pytest.warns(holdfast.HoldfastWarning, match="away from those that"):
        from_pretrained(tmp_path, net(seed=3), strength=3.0)
    with pytest.raises(holdfast.ConfigurationError, match="form= is part of what was measured"):
        from_pretrained(tmp_path, net(), form="diagonal")
    with pytest.raises(holdfast.StateError, match="another model"):
        from_pretrained(tmp_path, torch.nn.Sequential(torch.nn.Linear(7, 5)), strength=3.0)
    guard = holdfast.Consolidator(net(), holdfast.Fisher(samples=6), 3.0, "0.*", form="rotated", watch=["L2"])
    guard.consolidate([batch(0)])
    guard.save(tmp_path / "importance.safetensors")
    with pytest.raises(holdfast.StateError, match=r"holds 'total/L2/0\.bias', which is no importance"):
        from_pretrained(tmp_path, net())
    (tmp_path / "holdfast.json").write_text("{}")
    with pytest.raises(holdfast.StateError, match="lacks what a guard is made by"):
        from_pretrained(tmp_path, net())
