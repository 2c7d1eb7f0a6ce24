"""Layers whose weights are Gaussians, and the KL between those, against their formulas."""

import math

import pytest
import torch
from torch import nn

import anchorhold
from anchorhold.errors import ConfigurationError
from anchorhold.variational.gaussians import Gaussian, kl, kl_gradient
from anchorhold.variational.mean_field import drawing, mean_field_layers


def gaussian(seed, *shape):
    generator = torch.Generator().manual_seed(seed)
    mean, log_variance = torch.randn(2, *shape, dtype=torch.float64, generator=generator)
    return Gaussian(mean, log_variance)


def test_kl_is_the_integral():
    q, p = gaussian(0), gaussian(1)
    x = torch.linspace(-40, 40, 400_001, dtype=torch.float64)

    def log_density(g):
        return -0.5 * ((x - g.mean).square() / g.log_variance.exp() + g.log_variance + math.log(2 * math.pi))

    integral = torch.trapezoid(log_density(q).exp() * (log_density(q) - log_density(p)), x)
    torch.testing.assert_close(kl(q, p), integral, rtol=1e-10, atol=1e-10)


def test_kl_and_its_gradient_are_those_of_torch():
    q, p = gaussian(0, 3, 4), gaussian(1, 3, 4)
    mean, log_variance = (part.clone().requires_grad_() for part in q)
    normal = torch.distributions.Normal
    theirs = torch.distributions.kl_divergence(
        normal(mean, (0.5 * log_variance).exp()), normal(p.mean, (0.5 * p.log_variance).exp())
    ).sum()
    torch.testing.assert_close(kl(q, p), theirs.detach(), rtol=1e-12, atol=0)
    expected = torch.autograd.grad(theirs, [mean, log_variance])
    for own, other in zip(kl_gradient(q, p), expected, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-10, atol=1e-12)


LAYERS = {
    "linear": (lambda: nn.Linear(5, 3), (5,)),
    "without bias": (lambda: nn.Linear(5, 3, bias=False), (5,)),
    "conv1d": (lambda: nn.Conv1d(2, 3, 3, stride=2), (2, 7)),
    "conv2d": (lambda: nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular", groups=2), (2, 4, 4)),
    "conv3d": (lambda: nn.Conv3d(1, 2, 2, dilation=2), (1, 4, 4, 4)),
    "transposed 1d": (lambda: nn.ConvTranspose1d(2, 3, 3, stride=2, output_padding=1), (2, 4)),
    "transposed 2d": (lambda: nn.ConvTranspose2d(2, 4, 2, stride=2, padding=1, groups=2, bias=False), (2, 3, 3)),
    "transposed 3d": (lambda: nn.ConvTranspose3d(1, 2, 2, dilation=2), (1, 2, 2, 2)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_outputs_drawn_are_distributed_as_those_of_drawn_weights(name):
    """Mean and variance of an output over 40,000 draws, and by the formula from weights of unit vectors."""
    make, shape = LAYERS[name]
    torch.manual_seed(0)
    layer = anchorhold.variational.mean_field(make().double())
    for g in layer.gaussians().values():
        nn.init.uniform_(g.log_variance, -2, 0)
    layer.generator = torch.Generator().manual_seed(1)
    x, draws = torch.randn(1, *shape, dtype=torch.float64), 40_000
    mean = layer.eval()(x)
    # Every weight by itself moves the output by what it alone contributes: independent, so variances add up.
    expected = torch.zeros_like(mean)
    with torch.no_grad():
        for own, g in layer.gaussians().items():
            for i in range(g.mean.numel()):
                before = g.mean.view(-1)[i].item()
                g.mean.view(-1)[i] += 1
                expected += (layer(x) - mean).square() * g.log_variance.view(-1)[i].exp()
                g.mean.view(-1)[i] = before
            assert own in ("weight", "bias")
        layer.train()
        for noise, count in (("outputs", draws), ("weights", 4000)):
            layer.noise = noise
            if noise == "outputs":  # every sample of a batch has noise of its own
                found = layer(x.expand(count, *shape))
            else:
                found = torch.cat([layer(x) for _ in range(count)])
            error = (expected / count).sqrt()
            assert ((found.mean(0) - mean).abs() < 6 * error).all(), noise
            torch.testing.assert_close(found.var(0), expected[0], rtol=6 * (2 / count) ** 0.5, atol=0)


@pytest.mark.parametrize("noise", ["outputs", "weights"])
def test_a_transposed_convolution_has_the_size_that_is_asked_for(noise):
    torch.manual_seed(0)
    plain, x = nn.ConvTranspose2d(2, 3, 3, stride=2, padding=1), torch.randn(1, 2, 4, 4)
    expected = [plain(x), plain(x, [8, 7]), plain(x, output_size=[7, 8])]
    layer = anchorhold.variational.mean_field(plain, log_variance=-50, noise=noise)
    for mode in (True, False):
        layer.train(mode)
        for own, other in zip([layer(x), layer(x, [8, 7]), layer(x, output_size=[7, 8])], expected, strict=True):
            torch.testing.assert_close(own, other, rtol=1e-5, atol=1e-6)


def test_a_batch_shares_its_draw_of_weights_and_not_its_draws_of_outputs():
    torch.manual_seed(0)
    x = torch.ones(2, 4)
    for noise, alike in (("weights", True), ("outputs", False)):
        first, second = anchorhold.variational.mean_field(nn.Linear(4, 3), noise=noise)(x)
        assert torch.equal(first, second) == alike


def test_inputs_of_zero_have_a_gradient_without_bias():
    layer = anchorhold.variational.mean_field(nn.Linear(3, 2, bias=False))
    layer(torch.zeros(4, 3)).sum().backward()
    assert layer.weight_log_variance.grad.isfinite().all()


def test_a_model_keeps_its_names_and_its_means():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.LayerNorm(8), nn.Linear(8, 2))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    x = torch.randn(3, 1, 4, 4)
    plain = model.eval()(x)
    assert anchorhold.variational.mean_field(model, log_variance=-4) is model
    after = model.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert set(after) - set(before) == {f"{i}.{own}_log_variance" for i in (0, 3) for own in ("weight", "bias")}
    assert not model.load_state_dict(before, strict=False).unexpected_keys
    assert list(mean_field_layers(model)) == ["0", "3"]
    assert torch.equal(model(x), plain)
    with drawing(model):
        assert not torch.equal(model(x), plain)
    assert torch.equal(model(x), plain)


def test_predictions_are_means_of_probabilities():
    torch.manual_seed(0)
    model = anchorhold.variational.mean_field(nn.Linear(4, 3), log_variance=0.0)
    x = torch.randn(5, 4)
    model.generator = torch.Generator().manual_seed(3)
    found = anchorhold.variational.predictive(model, x, samples=7)
    assert model.training
    model.generator.manual_seed(3)
    expected = torch.stack([model(x).softmax(1) for _ in range(7)]).mean(0)
    torch.testing.assert_close(found.exp(), expected)


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(ConfigurationError, match="found no layer"):
        anchorhold.variational.mean_field(nn.LayerNorm(3))
    tied = nn.ModuleDict({"embedding": nn.Embedding(5, 4), "head": nn.Linear(4, 5, bias=False)})
    tied["head"].weight = tied["embedding"].weight
    with pytest.raises(ConfigurationError, match="share a weight"):
        anchorhold.variational.mean_field(tied)
    with pytest.raises(ConfigurationError, match="without distributions"):
        anchorhold.variational.predictive(nn.Linear(2, 2), torch.ones(1, 2))
    with pytest.raises(ConfigurationError, match="distributions already"):
        anchorhold.variational.mean_field(anchorhold.variational.mean_field(nn.Linear(2, 2)))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    def forward(self, x):
        return self.layer(x)[:, 0]


def test_predictions_of_transformers_are_drawn():
    """In evaluation torch computes their layers past the modules, by the means."""
    torch.manual_seed(0)
    model, x = anchorhold.variational.mean_field(Encoder(), log_variance=0.0), torch.randn(2, 3, 8)
    first, second = (anchorhold.variational.predictive(model, x, samples=1) for _ in range(2))
    assert (first - second).abs().max() > 0.1
    assert torch.backends.mha.get_fastpath_enabled()


def test_predictions_are_of_classes_and_of_weights_that_there_are():
    model, x = anchorhold.variational.mean_field(nn.Linear(4, 3)), torch.randn(5, 4)
    with pytest.raises(ConfigurationError, match=r"'wieght', which the model has not.* 'weight'"):
        anchorhold.variational.predictive(model, x, weights={"wieght": torch.zeros(3, 4)})
    with pytest.raises(ConfigurationError, match=r"shape \(3, 5\); expected \(3, 4\)"):
        anchorhold.variational.predictive(model, x, weights={"weight": torch.zeros(3, 5)})
    with pytest.raises(ConfigurationError, match="one class, whose probability is always 1"):
        anchorhold.variational.predictive(anchorhold.variational.mean_field(nn.Linear(4, 1)), x)
    pixels, image = anchorhold.variational.mean_field(nn.Conv2d(2, 3, 1)), torch.randn(2, 2, 4, 5)
    with pytest.raises(ConfigurationError, match=r"\(2, 3, 4, 5\) do not say .* expected class_dim"):
        anchorhold.variational.predictive(pixels, image)
    with pytest.raises(ConfigurationError, match="class_dim=0 for outputs of shape"):
        anchorhold.variational.predictive(pixels, image, class_dim=0)
    found = anchorhold.variational.predictive(pixels, image, samples=2, class_dim=1).exp().sum(1)
    torch.testing.assert_close(found, torch.ones(2, 4, 5))
