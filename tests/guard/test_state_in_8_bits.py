"""State in 8 bits: what is kept, that the hold is that of what is kept, and that sums over tasks stay right."""

import copy

import pytest
import torch
from torch import nn

import anchorhold
from anchorhold.errors import ConfigurationError, NotFiniteError
from anchorhold.guard.rollback.averaging import has_moved
from anchorhold.tensors.packed import (
    BLOCK,
    LEAST,
    Packed,
    PackedImportance,
    PackedWeights,
    pack_importance,
    pack_weights,
)
from anchorhold.tensors.storage import Storage
from anchorhold.tensors.summaries import checksum
from tests.helpers import grouped

INPUTS, HIDDEN, CLASSES = 64, 96, 10
LARGE = {"0.weight", "2.weight"}
"""Those of the network with enough weights to be packed; the others stay in 32 bits."""
MEASURES = ("EWC", "SI", "SOS")


def net(dtype=torch.float32, seed=0, hidden=HIDDEN):
    torch.manual_seed(seed)
    layers = [nn.Linear(INPUTS, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, CLASSES)]
    return nn.Sequential(*layers).to(dtype)


def batch(seed=0, n=64, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, INPUTS, generator=generator)
    return x.to(dtype), x[:, seed % 7 :][:, :CLASSES].argmax(1)


def step(model, optimizer, seed=0):
    x, y = batch(seed, dtype=next(model.parameters()).dtype)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()


def guarded(model, measure="EWC", optimizer=torch.optim.Adam, rate=0.01, state_dtype="8bit", **options):
    """A guard of a model, attached to an optimizer of its own."""
    options = {"strength": 1.0, "from_scratch": True} | options
    guard = anchorhold.Guard(model, measure, **grouped(state_dtype=state_dtype, **options))
    own = optimizer(model.parameters(), lr=rate)
    guard.attach(own)
    return guard, own


def learned(measure="EWC", tasks=2, steps=15, dtype=torch.float32, **options):
    """A model that has learned some tasks and begun another, its guard and optimizer."""
    model = net(dtype)
    guard, optimizer = guarded(model, measure, **options)
    for task in range(tasks + 1):
        for i in range(steps if task < tasks else 3):
            step(model, optimizer, 100 * task + i)
        if task < tasks:
            guard.consolidate([batch(100 * task, dtype=dtype)])
    return model, guard, optimizer


def kept(guard):
    """All tensors that a guard keeps of the measure that drives it, as it keeps them."""
    state = guard._core.state
    total = {name: matrix.omega for name, matrix in state.driving.total.items()}
    return [tensors[name] for tensors in (state.anchor, total) for name in sorted(tensors)]


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize(("dtype", "anchor"), [(torch.float32, 3), (torch.bfloat16, 2), (torch.float16, 2)])
def test_the_bytes_are_those_of_the_tensors_and_those_that_are_told(measure, dtype, anchor):
    model = net(dtype, hidden=8 * BLOCK // INPUTS)
    told = guarded(model, measure, strength=1e-3)[0].cost()
    _, guard, _ = learned_from(model, measure)
    assert guard.cost().kept == told.kept == sum(tensor.nbytes for tensor in kept(guard))
    by_name = {block.name: block for block in guard.cost().blocks}
    assert by_name["0.weight"].kept == by_name["0.weight"].weights * (1 + anchor) + 4 * 8
    parts = [part for t in kept(guard) for part in (t.parts if isinstance(t, Packed) else (t,))]
    assert guard.cost().kept == sum(part.untyped_storage().nbytes() for part in parts)


def learned_from(model, measure):
    guard, optimizer = guarded(model, measure, torch.optim.SGD, strength=1e-3, rate=1e-3)
    step(model, optimizer)
    guard.consolidate([batch(dtype=next(model.parameters()).dtype)])
    return model, guard, optimizer


def test_a_large_layer_takes_four_bytes_a_weight_and_three_in_16_bits():
    for dtype, most in ((torch.float32, 4.01), (torch.bfloat16, 3.01)):
        model = nn.Linear(2000, 500, dtype=dtype)
        assert anchorhold.Guard(model, "EWC", options=anchorhold.GuardOptions(state_dtype="8bit")).cost().kept < (
            most * 2000 * 500 + 8 * 500
        )


@pytest.mark.parametrize("measure", MEASURES)
def test_the_first_task_is_kept_as_it_was_found_and_rounded_once(measure):
    model, whole = net(), net()
    packed, plain = guarded(model, measure), guarded(whole, measure, state_dtype=None)
    for guard, optimizer in (packed, plain):
        for i in range(10):
            step(optimizer_model(optimizer, model, whole), optimizer, i)
        guard.consolidate([batch()])
    for name, omega in plain[0].importance.items():
        rounded = pack_importance(omega), pack_weights(plain[0].anchor[name])
        found = packed[0]._core.state.driving.total[name].omega, packed[0]._core.state.anchor[name]
        for expected, own in zip(rounded, found, strict=True):
            assert type(own) is type(expected) and isinstance(own, Packed) == (name in LARGE)
            assert torch.equal(own, expected)
    assert packed[0]._core.state.driving.held is packed[0]._core.state.driving.total


def optimizer_model(optimizer, *models):
    first = optimizer.param_groups[0]["params"][0]
    return next(model for model in models if next(model.parameters()) is first)


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("implicit", [False, True])
@pytest.mark.parametrize("hidden", [HIDDEN, 800])  # more than one piece
def test_a_step_is_held_by_what_is_kept(measure, implicit, hidden):
    """Against 2cΩ(θ − θ*), and (D + …)/(1 + 2cηΩ), in float64."""
    rate, c = 0.1, 50.0
    model = net(hidden=hidden)
    guard, optimizer = guarded(model, measure, torch.optim.SGD, rate, strength=c, implicit=implicit)
    step(model, optimizer)
    guard.consolidate([batch()])
    omega = {name: value.double() for name, value in guard.importance.items()}
    anchor = {name: value.double() for name, value in guard.anchor.items()}
    for seed in (1, 2):
        before = {name: p.detach().double() for name, p in model.named_parameters()}
        twin = copy.deepcopy(model)
        x, y = batch(seed)
        nn.functional.cross_entropy(twin(x), y).backward()
        step(model, optimizer, seed)
        for (name, p), other in zip(model.named_parameters(), twin.parameters(), strict=True):
            theta = before[name] - rate * other.grad.double()
            if implicit:
                expected = anchor[name] + (theta - anchor[name]) / (1 + 2 * c * rate * omega[name])
            else:
                expected = theta - rate * 2 * c * omega[name] * (before[name] - anchor[name])
            torch.testing.assert_close(p.detach().double(), expected, rtol=2e-5, atol=2e-6)
    penalty = sum((omega[n] * (p.detach().double() - anchor[n]).square()).sum() for n, p in model.named_parameters())
    assert float(guard.penalty().detach()) == pytest.approx(c * float(penalty), rel=1e-5) and penalty > 0


def test_the_penalty_is_never_below_zero_and_its_gradient_leads_to_the_anchor():
    model, guard, _ = learned("SI")
    guard.detach()
    for seed in range(5):
        torch.manual_seed(seed)
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.randn_like(p) * 10.0 ** (seed - 3))
        model.zero_grad()
        penalty = guard.penalty()
        penalty.backward()
        away = {name: p.detach() - guard.anchor[name] for name, p in model.named_parameters()}
        assert float(penalty.detach()) > 0
        assert all(bool((p.grad * away[name] >= 0).all()) for name, p in model.named_parameters())


def test_what_is_free_stays_free():
    model = net()
    guard, optimizer = guarded(model, strength=1e9)
    x, y = batch()
    x[:, ::3] = 0  # pixels that are never on
    guard.consolidate([(x, y)])
    omega = guard.importance["0.weight"]
    assert bool((omega[:, ::3] == 0).all()) and bool((omega[:, 1::3] > 0).any())
    before = model[0].weight.detach().clone()
    step(model, optimizer, 3)
    assert bool((model[0].weight[:, ::3] != before[:, ::3]).any())


@pytest.mark.parametrize("measure", [*MEASURES, "online-EWC", "RWalk-batch"])
def test_sums_over_tasks_stay_close_to_those_in_32_bits(measure):
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    watching = anchorhold.Guard(model, measure, **grouped(state_dtype="8bit"), from_scratch=True)
    watching.attach(optimizer, hold=False)  # the first to look, so that it sees the task's gradient alone
    guard = anchorhold.Guard(model, measure, strength=1.0, from_scratch=True)
    guard.attach(optimizer)
    for task in range(6):
        for i in range(5):
            step(model, optimizer, 100 * task + i)
        for each in (guard, watching):
            each.consolidate([batch(100 * task)])
    for name in LARGE:
        whole, own = guard.importance[name].double(), watching.importance[name].double()
        assert 0 < float((own - whole).norm() / whole.norm()) < 0.08
        assert float(own.sum()) == pytest.approx(float(whole.sum()), rel=0.003)
        # The anchor of both is where weights were.
        torch.testing.assert_close(watching.anchor[name], guard.anchor[name], rtol=2**-16, atol=0)


def test_many_small_tasks_add_up():
    """Each a hundredth of the first, below half a step of the total: rounded to the nearest, none would count."""
    torch.manual_seed(0)
    model = nn.Linear(128, 128)
    ledger = anchorhold.Guard(model, "EWC", **grouped(state_dtype="8bit"))._core.state.driving
    wide = torch.exp(-12 * torch.rand(128, 128))
    found = {"weight": anchorhold.forms.DiagonalMatrix("weight", wide)}
    small = {"weight": anchorhold.forms.DiagonalMatrix("weight", 0.01 * wide)}
    parameters = dict(model.named_parameters())
    for tasks in range(101):
        ledger.commit(ledger.new_total(small if tasks else found, 1.0, parameters, tasks))
    total = ledger.total["weight"].omega
    assert float((total / wide).mean()) == pytest.approx(2.0, rel=0.01)


@pytest.mark.parametrize("saved", [None, torch.bfloat16, "8bit"])
@pytest.mark.parametrize("loaded", [None, torch.bfloat16, "8bit"])
@pytest.mark.parametrize("measure", MEASURES)
def test_a_state_is_taken_over_in_the_precision_of_whoever_takes_it(measure, saved, loaded, tmp_path):
    model, guard, _ = learned(measure, state_dtype=saved)
    guard.save(tmp_path / "guard.safetensors")
    other = guarded(copy.deepcopy(model), measure, state_dtype=loaded)[0]
    other.load(tmp_path / "guard.safetensors")
    for name in guard.importance:
        # Every precision holds what 8 bits have kept of Ω.
        rtol = 0 if saved == loaded or (saved == "8bit" and name in LARGE) else 2**-4
        torch.testing.assert_close(other.importance[name].float(), guard.importance[name].float(), rtol=rtol, atol=0)
        rtol = 0 if saved == loaded or loaded is None else 2**-8 if loaded == torch.bfloat16 else 2**-16
        torch.testing.assert_close(other.anchor[name].float(), guard.anchor[name].float(), rtol=rtol, atol=0)
    if loaded == "8bit":
        assert all(isinstance(other._core.state.anchor[name], PackedWeights) for name in LARGE)


def test_a_state_has_plain_tensors_that_any_version_reads():
    _, guard, _ = learned("SI")
    tensors = guard.state_dict()["tensors"]
    assert {type(tensor) for tensor in tensors.values()} == {torch.Tensor}
    assert tensors["total/SI/0.weight"].dtype == torch.bfloat16 and tensors["anchor/0.weight"].dtype == torch.float32
    for tensor in (*guard.importance.values(), *guard.anchor.values()):
        assert type(tensor) is torch.Tensor
    assert guard.options.state_dtype == "8bit"


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_run_goes_on_exactly_from_a_state(measure, dtype, tmp_path):
    model, guard, optimizer = learned(measure, dtype=dtype)
    guard.save(tmp_path / "guard.safetensors")
    again = copy.deepcopy(model)
    other, twin = guarded(again, measure)
    twin.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    other.load(tmp_path / "guard.safetensors")
    for each, its_optimizer in ((model, optimizer), (again, twin)):
        for i in range(5):
            step(each, its_optimizer, i)
    guard.consolidate([batch(dtype=dtype)])
    other.consolidate([batch(dtype=dtype)])
    for mine, its in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(mine, its)
    for mine, its in zip(kept(guard), kept(other), strict=True):
        assert torch.equal(mine, its) and type(mine) is type(its)


def test_small_steps_lead_where_they_lead_in_32_bits():
    """An anchor in 16 bits pulls weights by its rounding, farther than such steps go."""

    def way(state_dtype):
        model = net()
        guard, optimizer = guarded(model, strength=1e3, state_dtype=state_dtype)
        for i in range(60):
            step(model, optimizer, 7 * i)
        guard.consolidate([batch(n=256)])
        before = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
        optimizer.param_groups[0]["lr"] = 1e-5
        for i in range(100):
            step(model, optimizer, 7 * i + 1)
        return torch.nn.utils.parameters_to_vector(model.parameters()).detach() - before

    whole = way(None)
    in_8_bits, in_16_bits = (float((way(each) - whole).norm() / whole.norm()) for each in ("8bit", torch.bfloat16))
    assert in_8_bits < 0.01 and in_16_bits > 0.1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_anchor_of_a_16_bit_model_is_exact(dtype):
    model = net(dtype)
    guard, _ = guarded(model, strength=1e-3)
    guard.consolidate([batch(dtype=dtype)])
    for name, parameter in model.named_parameters():
        assert torch.equal(guard.anchor[name], parameter) and guard.anchor[name].dtype == dtype
        assert isinstance(guard._core.state.driving.total[name].omega, PackedImportance) == (name in LARGE)
    assert guard.penalty() == 0


@pytest.mark.parametrize(
    "settings", [{"strength": {"0.*": 3.0, "*": 1.0}}, {"form": anchorhold.forms.Diagonal(damping=0.01)}]
)
def test_what_is_held_otherwise_than_measured_is_packed_too(settings):
    _, guard, _ = learned(**settings)
    held, total = guard._core.state.driving.held, guard._core.state.driving.total
    assert held is not total
    for name in LARGE:
        assert isinstance(held[name].omega, PackedImportance) and isinstance(total[name].omega, PackedImportance)
    if "form" in settings:
        assert all(bool((matrix.omega > 0).all()) for matrix in held.values())


def test_an_anchor_at_the_mean():
    _, guard, _ = learned(anchor="mean")
    _, whole, _ = learned(anchor="mean", state_dtype=None)
    for name in LARGE:
        assert isinstance(guard._core.state.anchor[name], PackedWeights)
        torch.testing.assert_close(guard.anchor[name], whole.anchor[name], rtol=0.1, atol=0.02)


def test_weights_that_have_not_moved_are_known():
    model, guard, optimizer = learned(tasks=1)
    held = dict(guard.parameters)
    assert has_moved(guard._core.state, held)
    guard.consolidate([batch()])
    assert not has_moved(guard._core.state, held)
    step(model, optimizer)
    guard.average(share=0.0)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter.detach(), guard.anchor[name])


def test_other_computations_see_the_numbers():
    model, guard, _ = learned("SI")
    assert "SI" in repr(guard)
    one, other = (checksum(map(copy.deepcopy, kept(guard))) for _ in range(2))
    assert one == other != checksum(kept(learned("SI", tasks=1)[1]))
    assert checksum([pack_weights(torch.ones(LEAST))]) == checksum([torch.ones(LEAST)])  # of one dimension
    assert copy.deepcopy(guard._core.state.anchor)["0.weight"].parts[0].data_ptr() != 0
    guard.forget("0.weight")
    assert "0.weight" not in guard.anchor and "2.weight" in guard.anchor
    merged = anchorhold.merge(net(seed=1), model, share=0.5)
    assert merged is not None


def test_a_model_that_changes_its_precision_is_held_on():
    model, guard, _ = learned(tasks=1)
    before = float(guard.penalty().detach())
    model.to(torch.float64)
    assert float(guard.penalty().detach()) == pytest.approx(before, rel=1e-5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    guard.attach(optimizer)
    step(model, optimizer)
    guard.consolidate([batch(dtype=torch.float64)])
    assert guard.penalty() < before and isinstance(guard._core.state.anchor["0.weight"], PackedWeights)


def test_importance_that_is_not_finite_is_refused_and_nothing_changes():
    _, guard, _ = learned(tasks=1)
    before = [tensor.clone() for tensor in kept(guard)]
    x, y = batch()
    x[0, 0] = 1e30
    with pytest.raises(NotFiniteError):
        guard.consolidate([(x, y)])
    assert all(map(torch.equal, kept(guard), before))


@pytest.mark.parametrize(
    ("measure", "settings", "said"),
    [
        ("EWC", {"form": "rotated"}, r"form='rotated'.*expected form='diagonal'.*state_dtype=torch\.bfloat16"),
        ("EWC", {"form": "kronecker"}, r"form='kronecker'.*expected form='diagonal'"),
        (anchorhold.SI(clamp="total"), {}, r"SI.*below 0.*expected a measure that clamps each task's"),
        ("EWC", {"gradient_term": True, "anchor": "mean"}, r"gradient_term=True.*expected it without"),
        ("EWC", {"space": "merged"}, r"space='merged'.*expected it without"),
        ("EWC", {"state_dtype": "4bit"}, r"state_dtype=4bit: expected torch\.bfloat16.*or '8bit'"),
    ],
)
def test_what_8_bits_cannot_hold_is_refused_at_once(measure, settings, said):
    with pytest.raises(ConfigurationError, match=said):
        anchorhold.Guard(net(), measure, **grouped(**({"state_dtype": "8bit"} | settings)))


def test_a_mean_beside_weights_of_16_bits_is_refused_and_one_beside_others_is_not():
    settings = grouped(state_dtype="8bit", anchor="mean")
    with pytest.raises(ConfigurationError, match=r"anchor='mean' and weights of 16 bits.*would stand still"):
        anchorhold.Guard(nn.Linear(64, 128).to(torch.bfloat16), "EWC", **settings)
    anchorhold.Guard(nn.Linear(64, 128), "EWC", **settings)


def test_a_watching_measure_is_refused_as_well():
    with pytest.raises(ConfigurationError, match=r"SI.*below 0"):
        anchorhold.Guard(net(), "EWC", watch=[anchorhold.SI(clamp="total")], **grouped(state_dtype="8bit"))


def test_tensors_elsewhere_are_moved_as_they_are_packed():
    storage, parameter = Storage("8bit", torch.device("meta")), torch.ones(LEAST)
    for moved in (storage.to_storage(parameter, parameter), storage.importance_to_storage(parameter, parameter)):
        assert isinstance(moved, Packed) and {part.device.type for part in moved.parts} == {"meta"}
