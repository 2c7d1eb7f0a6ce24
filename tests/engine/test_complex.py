"""Real parameters that meet complex tensors on the way, as the gains of a spectral filter do."""

import pytest
import torch
from torch import nn

import anchorhold
from anchorhold.engine.accumulator import sample_importance
from anchorhold.engine.phi import SQUARE
from anchorhold.engine.scores import LogLikelihood
from anchorhold.engine.tracing.samples import same_values
from anchorhold.errors import AnchorholdWarning, ModelError, ProtectError
from tests.engine.agreement import MEASURES, assert_agrees


class Spectral(nn.Module):
    """Sends inputs and a parameter through a form, and what comes out of it through a head."""

    def __init__(self, shape, form, features):
        super().__init__()
        self.gain, self.head, self.form = nn.Parameter(torch.randn(shape)), nn.Linear(features, 3), form

    def forward(self, x):
        return self.head(self.form(x, self.gain).flatten(1))


def _filtered(x, gain):
    return torch.fft.irfft(torch.fft.rfft(x) * gain, n=x.shape[-1])


def _filtered_image(x, gain):
    return torch.fft.irfft2(torch.fft.rfft2(x) * gain, s=x.shape[-2:])


def _merged(x, gain):
    spectrum = torch.fft.rfft(x)
    return torch.fft.irfft((spectrum.flatten(0, -2) * gain).view(spectrum.shape), n=x.shape[-1])


VECTORS, IMAGES = (6,), (2, 4, 6)
FORMS = {
    "filter": ((4,), _filtered, VECTORS, 6, False),
    "the gain first": ((4,), lambda x, g: torch.fft.irfft(g * torch.fft.rfft(x), n=6), VECTORS, 6, False),
    "one gain": ((), lambda x, g: torch.view_as_real(torch.fft.rfft(x) * g).sum(-1), VECTORS, 4, False),
    "shift": ((4,), lambda x, g: (torch.fft.rfft(x) + g).abs(), VECTORS, 4, False),
    "shift in place": ((4,), lambda x, g: torch.fft.rfft(x).add_(g).abs(), VECTORS, 4, False),
    "used twice": ((4,), lambda x, g: _filtered(_filtered(x, g).tanh(), g), VECTORS, 6, False),
    "scale and shift": ((4,), lambda x, g: torch.fft.irfft(torch.fft.rfft(x) * g + g, n=6), VECTORS, 6, False),
    "real part": ((4,), lambda x, g: (torch.fft.rfft(x) * g * (1 + 2j)).real, VECTORS, 4, False),
    "conjugate": ((4,), lambda x, g: (torch.fft.rfft(x).conj() * g * (1 + 2j)).imag, VECTORS, 4, False),
    "expanded": ((1, 4), lambda x, g: (g.expand(len(x), 4) * torch.fft.rfft(x)).abs(), VECTORS, 4, False),
    "image": ((1, 4, 4), _filtered_image, IMAGES, 48, False),
    "image, a gain a channel": ((2, 4, 4), _filtered_image, IMAGES, 48, False),
    "merged positions": ((4,), _merged, IMAGES, 48, False),
    "real and imaginary parts as parameters": (
        (4, 2),
        lambda x, g: (torch.fft.rfft(x) * torch.view_as_complex(g)).abs(),
        VECTORS,
        4,
        True,
    ),
}


@pytest.mark.daily
@pytest.mark.parametrize("samples", [1, 5])
@pytest.mark.parametrize("measure", ["Fisher", "AF", "MAS"])
@pytest.mark.parametrize("form", FORMS)
def test_form(form, measure, samples):
    shape, function, inputs, features, without_rule = FORMS[form]
    model, x = Spectral(shape, function, features).double(), torch.randn(samples, *inputs).double()
    assert_agrees(model, x, None, MEASURES[measure], fallback={"gain"} if without_rule else set())


@pytest.mark.parametrize("budget", [1, 1000, 10_000])
def test_chunks_of_complex_gradients(budget):
    model, x = Spectral((4,), _filtered, 6).double(), torch.randn(7, 6).double()
    assert_agrees(model, x, None, MEASURES["Fisher"], budget=budget)


@pytest.mark.parametrize("certain", [False, True])
def test_complex_inputs_in_float32(certain):
    model, x = Spectral((6,), lambda x, g: (x * g).abs(), 6), torch.randn(6, 6, dtype=torch.complex64)
    if certain:
        with torch.no_grad():
            model.head.weight.mul_(40)
    data = [(sample.to(torch.complex128), None) for sample in x.split(1)]
    assert_agrees(model, x, None, MEASURES["Fisher"], data=data)


def test_complex_outputs_are_refused():
    model = Spectral((4,), lambda x, g: torch.fft.rfft(x) * g, 4)
    for samples in (1, 3):
        with pytest.raises(ModelError, match=r"outputs are complex, of type torch.complex64.*forward=lambda"):
            sample_importance(
                model,
                [torch.randn(samples, 6)],
                LogLikelihood(),
                SQUARE,
                forward=lambda model, x: model.form(x, model.gain),
            )


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain, self.head = nn.Parameter(torch.randn(4, dtype=torch.complex64)), nn.Linear(4, 3)

    def forward(self, x):
        return self.head((torch.fft.rfft(x) * self.gain).abs())


def test_complex_parameters_are_named_or_refused():
    model, batches = Complex(), [torch.randn(5, 6)]
    with pytest.warns(AnchorholdWarning, match="'gain' is complex.*real and imaginary parts.*parameters="):
        found = anchorhold.Fisher().measure(model, batches)
    assert set(found) == {"head.weight", "head.bias"}
    real = {name: p for name, p in model.named_parameters() if not p.is_complex()}
    assert set(anchorhold.Fisher().measure(model, batches, parameters=real)) == set(found)  # without a word
    with pytest.raises(ModelError, match=r"'gain' has type torch\.complex64"):
        anchorhold.Fisher().measure(model, batches, parameters=dict(model.named_parameters()))
    with pytest.raises(ProtectError, match=r"'gain' has type torch\.complex64"):
        anchorhold.Guard(model, anchorhold.Fisher())


def test_complex_values_are_the_same_up_to_rounding():
    x = torch.randn(5, 4, dtype=torch.complex128)
    assert same_values(x, x * (1 + 1e-14))
    assert same_values(x.conj(), (x.real - 1j * x.imag) * (1 + 1e-14j))
    assert not same_values(x, x.conj())
    assert not same_values(x, x.real)
