import pytest
import torch
from torch import nn

import anchorhold


def model():
    body = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4))
    return nn.ModuleDict({"body": body, "head": nn.Linear(4, 2)})


def names(protect=None, net=None):
    return set(anchorhold.Guard(net or model(), anchorhold.L2(), protect=protect).parameters)


def test_every_trainable_parameter_by_default():
    net = model()
    net["body"][0].requires_grad_(False)
    assert names(net=net) == {"body.1.weight", "body.1.bias", "head.weight", "head.bias"}


def test_patterns_predicates_and_parameters():
    body = {"body.0.weight", "body.0.bias", "body.1.weight", "body.1.bias"}
    net = model()
    assert names("body.*") == body
    assert names(["body.*.weight", "head.bias"]) == {"body.0.weight", "body.1.weight", "head.bias"}
    assert names(lambda name, p: p.ndim == 2) == {"body.0.weight", "body.1.weight", "head.weight"}
    assert names(list(net["body"].parameters()), net) == body
    assert names(net["head"].parameters(), net) == {"head.weight", "head.bias"}
    assert names(net["head"].bias, net) == {"head.bias"}


def test_a_tied_parameter_is_one_parameter_under_any_of_its_names():
    net = nn.ModuleDict({"embed": nn.Embedding(5, 4), "head": nn.Linear(4, 5, bias=False)})
    net["head"].weight = net["embed"].weight
    assert names("head.weight", net) == {"embed.weight"}
    assert names("embed.*", net) == {"embed.weight"}


@pytest.mark.daily
@pytest.mark.parametrize(
    ("protect", "message"),
    [
        ("bdoy.*", "matches no parameter"),
        (["body.*", "haed.weight"], "Did you mean 'head.weight'"),
        ("body", r"Did you mean 'body\.\*'"),
        ("weight", r"has to match the whole name. Did you mean '\*weight\*', which matches "),
        (nn.Linear(2, 2), r"protect is a module, a Linear.*module.parameters\(\)"),
        ([], "empty list"),
        ([3], "holds a int"),
        (lambda name, p: False, "No parameter of the model was selected"),
        ([nn.Parameter(torch.zeros(2))], "not one of the model's"),
    ],
)
def test_what_matches_nothing_is_refused(protect, message):
    with pytest.raises(anchorhold.errors.ProtectError, match=message):
        anchorhold.Guard(model(), anchorhold.L2(), protect=protect)


def test_models_without_anything_to_protect():
    with pytest.raises(anchorhold.errors.ProtectError, match="It has none at all"):
        anchorhold.Guard(nn.ReLU(), anchorhold.L2())
    with pytest.raises(anchorhold.errors.ProtectError, match="No parameter of the model is trainable"):
        anchorhold.Guard(nn.Linear(2, 2).requires_grad_(False), anchorhold.L2())
    net = nn.ParameterDict({"spectrum": nn.Parameter(torch.zeros(3, dtype=torch.complex64))})
    with pytest.raises(anchorhold.errors.ProtectError, match="only real floating-point"):
        anchorhold.Guard(net, anchorhold.L2())
