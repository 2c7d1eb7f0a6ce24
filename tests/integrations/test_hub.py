"""Importance that is shared: a folder, and a repository of a hub that a server on this machine stands for."""

import base64
import copy
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
import yaml
from safetensors import safe_open

import anchorhold
from anchorhold.integrations.hub import from_pretrained, importance_files, push_to_hub, save_pretrained
from anchorhold.integrations.hub.importance_files import CARRIED
from tests.adapters.by_hand import adapt, networks
from tests.guard.helpers import batch, loss, net
from tests.helpers import grouped

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
            assert front["library_name"] == "anchorhold"
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
            missing = {"X-Error-Code": "EntryNotFound" if found else "RepoNotFound"}
            asked = self.path.startswith("/api/models/")
            self._answer({"sha": COMMIT, "siblings": []}, 200 if asked else 404, {} if asked else missing)
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

    def _answer(self, told, status=200, headers=()):
        content = json.dumps(told).encode()
        self.send_response(status)
        for name, value in dict(headers).items():
            self.send_header(name, value)
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
    guard = anchorhold.Guard(
        model, anchorhold.Fisher(samples=6), strength=3.0, protect="0.*", form=form, **grouped(**options)
    )
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
    holds = [anchorhold.Replay(6), anchorhold.Distillation(6, name="distilled")]
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
    assert sorted(hub.files) == ["README.md", "anchorhold.json", "importance.safetensors"]
    assert b'guard = from_pretrained("someone/importance", model' in hub.files["README.md"]  # as it can be run
    other = from_pretrained("someone/importance", net(), strength=3.0, endpoint=hub.address, token="hf_x")
    assert penalty_away(other) == penalty_away(guard)
    with pytest.raises(anchorhold.errors.StateError, match="'someone/other' is no folder here, and could not be had"):
        from_pretrained("someone/other", model, endpoint=hub.address, token="hf_x")
    push_to_hub(guard, "someone/importance", token="hf_x", endpoint=hub.address, **{**ABOUT, "measured_from": "more"})
    assert b"| measured from | more |" in hub.files["README.md"]  # a card of our own is written anew


@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
def test_the_card_of_a_models_own_repository_stays(hub):
    _, guard = measured()
    hub.files["README.md"] = theirs = b"---\nlibrary_name: transformers\n---\n\n# A model\n"
    with pytest.warns(
        anchorhold.AnchorholdWarning, match=r"'someone/importance' has a README\.md that is no card of imp"
    ):
        push_to_hub(guard, "someone/importance", token="hf_x", endpoint=hub.address, **ABOUT)
    assert hub.files["README.md"] == theirs
    assert b"eight samples" in hub.files["anchorhold.json"]


def test_a_push_that_fails_says_what_to_do(hub):
    _, guard = measured()
    hub.shutdown()
    hub.server_close()
    for repo in ("bad name//x", "someone/importance"):
        with pytest.raises(anchorhold.errors.StateError, match=r"Nothing was pushed to .* a repository that is yours"):
            push_to_hub(guard, repo, token="hf_x", endpoint=hub.address, **ABOUT)


@pytest.mark.parametrize("form", ["diagonal", "rotated"])
def test_an_exchange_rate_goes_by_the_tokens_that_come(form, tmp_path):
    own = anchorhold.Guard(net(), anchorhold.Fisher(samples=6), protect="0.*", form=form, exchange_rate=0.3)
    own.consolidate([batch(0)])
    save_pretrained(measured(form)[1], tmp_path, **ABOUT)
    other = from_pretrained(tmp_path, net(), exchange_rate=0.3)
    assert other.strength == own.strength == 0.15
    assert other.exchange_rate == 0.3
    assert penalty_away(other) == penalty_away(own) > 0
    assert from_pretrained(tmp_path, net()).exchange_rate == 1.0
    assert from_pretrained(tmp_path, net(), strength=4.0).held.record()["exchange_rate"] == 8.0


def test_importance_of_0_1_0_has_no_tokens_and_takes_a_strength(tmp_path, monkeypatch):
    monkeypatch.setattr(importance_files, "CARRIED", tuple(key for key in CARRIED if key != "tokens"))
    save_pretrained(measured()[1], tmp_path, **ABOUT)
    with pytest.raises(
        anchorhold.errors.ConfigurationError, match=r"exchange_rate=1\.0 for importance .* T is 1 for a"
    ):
        from_pretrained(tmp_path, net(), exchange_rate=1.0)
    guard = from_pretrained(tmp_path, net())
    assert guard.strength == 1.0 and guard.exchange_rate is None
    assert from_pretrained(tmp_path, net(), strength=4.0).strength == 4.0


def test_a_readme_of_others_stays(tmp_path):
    _, guard = measured()
    theirs = "# library_name: anchorhold\n\nis not our front matter\n"
    (tmp_path / "README.md").write_text(theirs)
    with pytest.warns(anchorhold.AnchorholdWarning, match="was left as it is"):
        save_pretrained(guard, tmp_path, **ABOUT)
    assert (tmp_path / "README.md").read_text() == theirs
    assert from_pretrained(tmp_path, net()).tasks == 1


@pytest.mark.daily
@pytest.mark.parametrize(
    ("what", "value", "told"),
    [
        ("form", "diagonal", r"is damaged: it has form='diagonal'; expected settings with a 'name'"),
        ("form", {}, r"is damaged: it has form=\{\}"),
        ("form", {"name": "rotated", "newer": 1}, r"cannot make .*'newer'.* or a newer anchorhold wrote it"),
        ("form", {"name": "newer"}, r"cannot make .* or a newer anchorhold wrote it"),
        ("measure", "EWC", r"is damaged: it has measure='EWC'; expected settings with a 'kind'"),
        ("measure", {"kind": ["Fisher"]}, r"is damaged: it has measure="),
        ("measure", {"kind": "Fisher", "newer": 1}, r"cannot make .*'newer'.* or a newer anchorhold wrote it"),
        ("parameters", None, r"is damaged: it has parameters=None; expected a list of names"),
        ("parameters", [], r"is damaged: it has parameters=\[\]"),
    ],
)
def test_settings_that_no_guard_can_be_made_by(what, value, told, tmp_path):
    save_pretrained(measured()[1], tmp_path, **ABOUT)
    path = tmp_path / "anchorhold.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), what: value}))
    with pytest.raises(anchorhold.errors.StateError, match=told):
        from_pretrained(tmp_path, net())


def test_weights_that_are_elsewhere_or_not_finite_are_told_of(tmp_path):
    model, guard = measured()
    save_pretrained(guard, tmp_path / "some", **ABOUT)
    with torch.no_grad():
        model[0].weight.mul_(0).sub_(7 * guard.anchor["0.weight"])
        model[0].bias.mul_(-7)
    with pytest.warns(anchorhold.AnchorholdWarning, match="weights are 800 % away from"):
        from_pretrained(tmp_path / "some", model)
    model[0].bias.data[0] = torch.nan
    with pytest.warns(anchorhold.AnchorholdWarning, match="weights are not finite, and away from"):
        from_pretrained(tmp_path / "some", model)
    torch.nn.init.zeros_(model[0].weight)
    torch.nn.init.zeros_(model[0].bias)
    guard = anchorhold.Guard(model, "L2", protect="0.*")
    guard.consolidate()
    save_pretrained(guard, tmp_path / "zeros", **ABOUT)
    with pytest.warns(anchorhold.AnchorholdWarning, match="weights are away, from 0, from those"):
        from_pretrained(tmp_path / "zeros", net())


def test_frozen_statistics_come_along(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 3)).double()
    model(torch.randn(8, 4, dtype=torch.float64))
    for measured_with, given in (("freeze", {}), (None, {"batch_norm": "freeze"})):
        guard = anchorhold.Guard(model, "L2", batch_norm=measured_with)
        guard.consolidate()
        save_pretrained(guard, tmp_path, **ABOUT)
        guard.detach()
        here = copy.deepcopy(model).train()
        assert from_pretrained(tmp_path, here, **given).options.batch_norm == "freeze"
        before = here[1].running_mean.clone()
        here.train()(torch.randn(8, 4, dtype=torch.float64))
        assert torch.equal(here[1].running_mean, before)
        with pytest.raises(
            anchorhold.errors.ConfigurationError, match=r"batch_norm='fold' for importance .* Leave it out"
        ):
            from_pretrained(tmp_path, model, batch_norm="fold")


def test_other_statistics_are_told_of(tmp_path):
    """Weights alone do not make a network: another file of the same weights may have batch norms of other data."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 3)).double()
    model(torch.randn(8, 4, dtype=torch.float64))
    guard = anchorhold.Guard(model, "L2", batch_norm="freeze")
    guard.consolidate()
    save_pretrained(guard, tmp_path / "some", **ABOUT)
    guard.detach()
    from_pretrained(tmp_path / "some", copy.deepcopy(model).float())  # which rounds them, and warns of nothing
    other = copy.deepcopy(model)
    other[1].running_mean.copy_(other[1].running_mean.flip(0))
    with pytest.warns(anchorhold.AnchorholdWarning, match=r"buffer '1.running_mean', one of 1 .* another network"):
        from_pretrained(tmp_path / "some", other)


def test_what_was_mistaken_is_said_at_once(tmp_path, monkeypatch):
    """Without a question to the hub, which takes its time where there is no connection."""
    monkeypatch.setattr("anchorhold.integrations.hub.repositories.library", lambda: pytest.fail("the hub was asked"))
    model, guard = measured()
    (tmp_path / "file").write_text("")
    for source in ("impp", "./impp", "../some/impp", "a/b/c", "~/impp", tmp_path / "impp"):
        with pytest.raises(anchorhold.errors.StateError, match="is no folder here, and no name of a repository"):
            from_pretrained(source, model)
    with pytest.raises(anchorhold.errors.StateError, match="is a file, and no name of a repository"):
        from_pretrained(tmp_path / "file", model)
    with pytest.raises(anchorhold.errors.StateError, match=r"file' can be no folder .* nothing was written"):
        save_pretrained(guard, tmp_path / "file", **ABOUT)
    with pytest.raises(anchorhold.errors.ConfigurationError, match="guard=Sequential: expected a Guard"):
        save_pretrained(model, tmp_path, **ABOUT)
    for name in (3, "a\n---\n`b`", ""):
        with pytest.raises(anchorhold.errors.ConfigurationError, match="expected the name of a model in one line"):
            save_pretrained(guard, tmp_path, measured_from="noise", base_model=name)
    save_pretrained(guard, tmp_path, **ABOUT)
    other = torch.nn.Sequential(torch.nn.Identity(), torch.nn.Linear(4, 4))
    with pytest.raises(
        anchorhold.errors.StateError, match=r"called '0\.bias', '0\.weight', .* it has '1\.weight', '1\.bias'"
    ):
        from_pretrained(tmp_path, other)


def test_what_would_mislead_is_refused_or_told(tmp_path):
    fresh = anchorhold.Guard(net(), "EWC")
    with pytest.raises(anchorhold.errors.OrderError, match="no importance to be shared"):
        save_pretrained(fresh, tmp_path, **ABOUT)
    _, guard = measured()
    with pytest.raises(anchorhold.errors.ConfigurationError, match="expected a few words on the data"):
        save_pretrained(guard, tmp_path, measured_from=" ")
    save_pretrained(guard, tmp_path, **ABOUT)
    with pytest.warns(anchorhold.AnchorholdWarning, match="away from those that"):
        from_pretrained(tmp_path, net(seed=3), strength=3.0)
    with pytest.raises(anchorhold.errors.ConfigurationError, match="form= is part of what was measured"):
        from_pretrained(tmp_path, net(), form="diagonal")
    with pytest.raises(anchorhold.errors.StateError, match="another model"):
        from_pretrained(tmp_path, torch.nn.Sequential(torch.nn.Linear(7, 5)), strength=3.0)
    guard = anchorhold.Guard(
        net(), anchorhold.Fisher(samples=6), strength=3.0, protect="0.*", form="rotated", watch=["L2"]
    )
    guard.consolidate([batch(0)])
    guard.save(tmp_path / "importance.safetensors")
    with pytest.raises(anchorhold.errors.StateError, match=r"holds 'total/L2/0\.bias', which is no importance"):
        from_pretrained(tmp_path, net())
    (tmp_path / "anchorhold.json").write_text("{}")
    with pytest.raises(anchorhold.errors.StateError, match="lacks what a guard is made by"):
        from_pretrained(tmp_path, net())


@pytest.mark.parametrize("form", ["diagonal", "kronecker", "rotated"])
def test_shared_importance_of_adapters_is_of_their_own_parameters(form, tmp_path):
    """Which is not what a guard would hold of them by itself."""
    torch.manual_seed(0)
    model, inputs, layers = networks()["mlp"]
    adapt(model, layers)
    guard = anchorhold.Guard(
        model, anchorhold.Fisher(), strength=2.0, form=form, options=anchorhold.GuardOptions(space="weights")
    )
    guard.consolidate([inputs])
    save_pretrained(guard, tmp_path / "shared", measured_from="noise")
    found = from_pretrained(tmp_path / "shared", model, strength=2.0)
    with torch.no_grad():
        for parameter in guard.parameters.values():
            parameter.add_(0.1)
    assert found.options.space == "weights"
    assert float(found.penalty().detach()) == float(guard.penalty().detach()) > 0
    with pytest.raises(anchorhold.errors.ConfigurationError, match="all that is shared"):
        from_pretrained(tmp_path / "shared", model, options=anchorhold.GuardOptions(space="merged"))
