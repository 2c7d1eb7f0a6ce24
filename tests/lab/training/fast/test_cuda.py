"""On a GPU: compiled, recorded and replayed, the steps are those of the plain loop on the same GPU."""

import dataclasses

import pytest
import torch
from torch import nn

import anchorhold
from anchorhold.engine.reductions import Basis
from anchorhold.forms import Kronecker, Rotated, RotatedMatrix
from anchorhold.tensors.matrices import tf32_allowed
from anchorhold_lab.networks import MultiHead
from anchorhold_lab.training.fast import FastRuns
from anchorhold_lab.training.fast.flat_layout import FlatLayout
from anchorhold_lab.training.fast.layer_holds import MULTIPLE, LayerHolds
from anchorhold_lab.training.fast.shared_steps import can_measure
from anchorhold_lab.training.plain_run import PlainRun
from tests.lab.training.fast.test_engine import LONG, compare, relative
from tests.lab.training.fast.test_gradients import convolutional
from tests.lab.training.helpers import finish, make_learner, make_model, make_scenario

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("default"),
]


def with_batch_norm(scenario):
    body = nn.Sequential(nn.Linear(6, 10, bias=False), nn.BatchNorm1d(10), nn.ReLU())
    return MultiHead(body, 10, 3, scenario.heads, bias=0.1)


def learner(
    seed=3,
    measure="SI",
    network=make_model,
    shape=(6,),
    precision="fp32",
    dtype=torch.float64,
    form="diagonal",
    strength=0.5,
    batch_norm=None,
    implicit=False,
    **changes,
):
    scenario = make_scenario(2, True, dtype, train=35, seed=seed, shape=shape)
    model = network(scenario).to(dtype)
    settings = dataclasses.replace(LONG, **changes)
    options = {"settings": settings, "seed": seed, "scenario": scenario, "model": model, "device": "cuda"}
    options |= {"precision": precision, "form": form, "strength": strength, "implicit": implicit}
    return make_learner(measure, batch_norm=batch_norm, **options)


@pytest.mark.parametrize("runs", [1, 3])
@pytest.mark.parametrize(
    "measure", [name for name, made in anchorhold.measures.default_measures().items() if can_measure(made)]
)
def test_every_measure(measure, runs):
    """In float64, where 208 steps hardly amplify rounding."""
    plain = finish(PlainRun(learner(3, measure)))
    fast = finish(FastRuns([learner(seed, measure) for seed in range(3, 3 + runs)]))
    compare(fast.learners[0], plain.learner, 1e-8)


@pytest.mark.parametrize("network", ["linear", "batch norm", "frozen batch norm", "convolutional"])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_networks_and_optimizers(network, optimizer):
    options = {
        "linear": {"network": make_model},
        "batch norm": {"network": with_batch_norm},
        "frozen batch norm": {"network": with_batch_norm, "batch_norm": "freeze"},
        # without dropout: masks are drawn in memory order, which is channels last here
        "convolutional": {"network": lambda _: without_dropout(convolutional()), "shape": (2, 6, 6)},
    }[network]
    fast = finish(FastRuns([learner(seed, "SIB", optimizer=optimizer, **options) for seed in (1, 2)]))
    plain = finish(PlainRun(learner(2, "SIB", optimizer=optimizer, **options)))
    compare(fast.learners[1], plain.learner, 1e-7)


def without_dropout(model):
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model


def test_convolutions_with_dropout_run_and_drop():
    options = {"network": lambda _: convolutional(), "shape": (2, 6, 6), "dtype": torch.float32}
    first = finish(FastRuns([learner(seed, "SI", precision="bf16", **options) for seed in (1, 2)]))
    again = finish(FastRuns([learner(seed, "SI", precision="bf16", **options) for seed in (2, 1)]))
    assert relative(first.learners[0].model.state_dict(), again.learners[1].model.state_dict()) < 1e-2
    other = finish(
        FastRuns(
            [learner(1, "SI", network=lambda _: without_dropout(convolutional()), shape=(2, 6, 6), dtype=torch.float32)]
        )
    )
    assert relative(first.learners[0].model.state_dict(), other.learners[0].model.state_dict()) > 1e-2


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_lower_precisions_stay_near(precision):
    exact = finish(FastRuns([learner(3, "SI", epochs=5, dtype=torch.float32)]))
    rounded = finish(FastRuns([learner(3, "SI", precision=precision, epochs=5, dtype=torch.float32)]))
    difference = relative(rounded.learners[0].model.state_dict(), exact.learners[0].model.state_dict())
    assert 0 < difference < 0.1


def test_a_run_that_stopped_goes_on_exactly():
    whole = finish(FastRuns([learner(seed, "SIU") for seed in (1, 2)]))
    stopped = FastRuns([learner(seed, "SIU") for seed in (1, 2)])
    for _, progress in zip(range(40), stopped.learn(), strict=False):
        last = progress
    assert last.task == 1
    resumed = FastRuns([learner(seed, "SIU") for seed in (1, 2)])
    resumed.load_state(stopped.state())
    finish(resumed)
    for a, b in zip(resumed.learners, whole.learners, strict=True):
        compare(a, b, 1e-10)


FORMS = {
    "rotated": Rotated(),
    "rotated along its inputs": Rotated(outputs="identity"),
    "kronecker": Kronecker(),
    "kronecker with a diagonal": Kronecker(inputs="diagonal"),
}


@pytest.mark.parametrize("runs", [1, 3])
@pytest.mark.parametrize("form", FORMS)
def test_every_form(form, runs):
    """The second task is recorded anew, with the products beside the gradients."""
    options = {"measure": "EWC", "form": FORMS[form], "strength": 20.0}
    plain = finish(PlainRun(learner(3, **options)))
    fast = finish(FastRuns([learner(seed, **options) for seed in range(3, 3 + runs)]))
    assert fast._recorded_holding
    compare(fast.learners[0], plain.learner, 1e-8)


@pytest.mark.parametrize("network", ["batch norm", "convolutional"])
@pytest.mark.parametrize("form", ["rotated", "kronecker"])
def test_forms_of_networks_in_lanes(network, form):
    options = {
        "batch norm": {"network": with_batch_norm},
        "convolutional": {"network": lambda _: without_dropout(convolutional()), "shape": (2, 6, 6)},
    }[network]
    options |= {"measure": "EWC", "form": FORMS[form], "strength": 20.0}
    fast = finish(FastRuns([learner(seed, **options) for seed in (1, 2)]))
    compare(fast.learners[1], finish(PlainRun(learner(2, **options))).learner, 1e-7)


@pytest.mark.parametrize("network", ["linear", "convolutional"])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_after_the_step(network, form):
    options = {
        "linear": {"network": make_model},
        "convolutional": {"network": lambda _: without_dropout(convolutional()), "shape": (2, 6, 6)},
    }[network]
    options |= {"measure": "EWC", "form": FORMS[form], "strength": 20.0, "implicit": True, "optimizer": "sgd"}
    fast = finish(FastRuns([learner(seed, **options) for seed in (1, 2)]))
    compare(fast.learners[1], finish(PlainRun(learner(2, **options))).learner, 1e-7)


def test_products_are_rounded_only_where_that_is_asked_for():
    """Whatever is set around them; TF32 keeps 10 bits."""
    torch.manual_seed(0)
    model = nn.Linear(255, 250).cuda()
    parameters = dict(model.named_parameters())
    layout = FlatLayout({name: parameter.shape for name, parameter in parameters.items()})
    weights, anchor = torch.randn(2, 1, layout.width, device="cuda")
    u_g, u_a = (torch.linalg.qr(torch.randn(size, size, device="cuda")).Q for size in (250, 256))
    s = torch.rand(250, 256, device="cuda")
    pulls = []
    for form, around in ((Rotated(), False), (Rotated(), True), (Rotated(precision="tf32"), False)):
        (block,) = form.blocks(model, parameters)
        holds = LayerHolds(form, [block], layout, weights, anchor, MULTIPLE)
        holds.take(0, {block.name: RotatedMatrix(block, s, Basis(u_g, u_a), Basis(None, None))})
        with tf32_allowed(around, torch.device("cuda")):
            pulls.append(holds.pulls()["weight"])
    exact, in_training, rounded = pulls
    assert (in_training - exact).norm() < 1e-6 * exact.norm()
    assert 1e-5 * exact.norm() < (rounded - exact).norm() < 1e-2 * exact.norm()


def test_a_run_with_a_form_that_stopped_goes_on_exactly():
    def make():
        return FastRuns([learner(seed, "EWC", form=Rotated(), strength=20.0) for seed in (1, 2)])

    whole, stopped, resumed = finish(make()), make(), make()
    for _, progress in zip(range(40), stopped.learn(), strict=False):
        last = progress
    assert last.task == 1
    resumed.load_state(stopped.state())
    finish(resumed)
    for a, b in zip(resumed.learners, whole.learners, strict=True):
        compare(a, b, 1e-10)


def test_epochs_of_a_single_step():
    fast = finish(FastRuns([learner(3, "SI", batch_size=35)]))
    plain = finish(PlainRun(learner(3, "SI", batch_size=35)))
    compare(fast.learners[0], plain.learner, 1e-8)


def test_a_run_that_stopped_at_the_end_of_a_task_goes_on():
    whole, stopped, resumed = (FastRuns([learner(1, "SI")]) for _ in range(3))
    for progress in stopped.learn():
        if progress.step == progress.steps:  # all steps taken, nothing measured yet
            break
    assert not stopped.outcomes[0].matrix
    resumed.load_state(stopped.state())
    compare(finish(resumed).learners[0], finish(whole).learners[0], 1e-10)
