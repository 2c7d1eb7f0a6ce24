"""The loops that people really have, each against a plain loop in float64 that knows neither hooks nor scalers.

A feature of a loop must change nothing that it does not change in that loop: 1e-4 of a tensor's norm is allowed where
the arithmetic is float32's, and a few hundredths where activations have 16 bits.
"""

import functools
from dataclasses import dataclass, field

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import anchorhold
from anchorhold.guard.stepping import bundles
from tests import oracles, path_oracle
from tests.docs.pages import run_page
from tests.guard.helpers import weights

STRENGTH = 0.5
SINGLE, HALF = 1e-4, 5e-2
MEASURES = {"SI": anchorhold.SI(damping=0.01), "SOS": anchorhold.SOS(), "EWC": anchorhold.Fisher()}
IMPLEMENTATIONS = {"plain": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
OPTIMIZERS = {
    "nesterov": lambda p, **how: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, **how),
    "Adam": lambda p, **how: torch.optim.Adam(p, lr=0.01, **how),
}


class Net(nn.Module):
    """Two layers, the first checkpointed if so asked."""

    def __init__(self, reentrant=None):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh())
        self.head = nn.Linear(6, 3)
        self.reentrant = reentrant

    def forward(self, x):
        if self.reentrant is None:
            return self.head(self.body(x))
        if self.reentrant and torch.is_grad_enabled():
            x = x.detach().requires_grad_()  # without which this form trains nothing of what is inside
        return self.head(checkpoint(self.body, x, use_reentrant=self.reentrant))


def batches(task, steps=6):
    generator = torch.Generator().manual_seed(task)
    x = torch.randn(steps, 8, 4, generator=generator)
    return [(one, (one[:, task % 4] > 0).long() + (one[:, 1] > 1).long()) for one in x]


def loss_of(model, data):
    return nn.functional.cross_entropy(model(data[0]).float(), data[1])


# The truth


def omega(measure, model, steps, data):
    """A task's importance by definition, from its recorded steps or from the weights it ended with."""
    if measure == "EWC":
        x = torch.cat([one for one, _ in data])
        return oracles.importance(model, oracles.one_by_one(x), oracles.every_label, torch.square)
    if measure == "SI":
        return {name: path_oracle.rescaled(steps, name, "SI", 0.01) for name in steps[0].before}
    return {name: path_oracle.second_moment(steps, name, 0.999, 0.0, normalise=True).sqrt() for name in steps[0].before}


@functools.cache
def truth(measure, optimizer, clip=None, rates=None):
    """Two tasks in float64, with every gradient computed for its own purpose and the penalty's written out."""
    make = OPTIMIZERS[optimizer]
    model = Net().double()
    names = [name for name, _ in model.named_parameters()]
    total, anchor = {}, {}
    for task in (1, 2):
        optimizer = make(model.parameters(), foreach=False)
        data = [(x.double(), y) for x, y in batches(task)]
        steps = []
        for i, one in enumerate(data):
            if rates is not None:
                optimizer.param_groups[0]["lr"] = rates[i]
            loss = nn.functional.cross_entropy(model(one[0]), one[1])
            found = dict(zip(names, torch.autograd.grad(loss, list(model.parameters())), strict=True))
            if clip is not None:
                norm = torch.cat([g.flatten() for g in found.values()]).norm()
                found = {name: g * min(1.0, clip / (float(norm) + 1e-6)) for name, g in found.items()}
            before = path_oracle.snapshot(model)
            for name, p in model.named_parameters():
                held = 2 * STRENGTH * total[name] * (p.detach() - anchor[name]) if anchor else 0.0
                p.grad = found[name] + held
            optimizer.step()
            steps.append(path_oracle.Step(before, path_oracle.snapshot(model), found, found))
        new = omega(measure, model, steps, data)
        total = {name: total.get(name, 0.0) + new[name] for name in names}
        anchor = path_oracle.snapshot(model)
    return anchor, total


# The loop


@dataclass
class Feature:
    """What a user's loop does, and what the plain loop has to do to be comparable."""

    tolerance: float = SINGLE
    dtype: torch.dtype | None = None
    scale: float | None = None
    overflow: bool = False
    accumulate: int = 1
    clip: float | None = None
    rates: tuple[float, ...] | None = None
    set_to_none: bool = True
    inside_autocast: bool = False
    net: dict = field(default_factory=dict)


RATES = (0.05, 0.05, 0.025, 0.025, 0.0125, 0.0125)  # StepLR(step_size=2, gamma=0.5)
FEATURES = {
    "accumulation": Feature(accumulate=2),
    "clipping": Feature(clip=0.2),
    "gradients zeroed in place": Feature(set_to_none=False),
    "scheduler": Feature(rates=RATES),
    "scaler": Feature(scale=2.0**12, overflow=True),
    "scaler, clipping": Feature(scale=2.0**12, overflow=True, clip=0.2),
    "scaler, accumulation": Feature(scale=2.0**12, overflow=True, accumulate=2),
    "bf16": Feature(dtype=torch.bfloat16, tolerance=HALF),
    "fp16, scaler": Feature(dtype=torch.float16, scale=2.0**12, overflow=True, tolerance=HALF),
    "fp16, scaler, all at once": Feature(
        dtype=torch.float16, scale=2.0**12, overflow=True, accumulate=2, clip=0.2, tolerance=HALF, inside_autocast=True
    ),
    "checkpointed": Feature(net={"reentrant": False}),
    "checkpointed, re-entrant": Feature(net={"reentrant": True}),
}


def train(model, optimizer, guard, task, feature):
    """A user's loop, with all that a feature asks for."""
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5) if feature.rates else None
    scaler = torch.amp.GradScaler("cpu", init_scale=feature.scale or 1.0, enabled=feature.scale is not None)
    data = [(one, False) for one in batches(task)]
    if feature.overflow:
        data.insert(4, (data[0][0], True))
        # A fused SGD's momentum is left undefined by torch if its very first step is skipped; Adam's is not.
        data.insert(isinstance(optimizer, torch.optim.SGD), (data[0][0], True))
    for (x, y), overflows in data:
        optimizer.zero_grad(set_to_none=feature.set_to_none)
        for part in zip(x.chunk(feature.accumulate), y.chunk(feature.accumulate), strict=True):
            with torch.autocast("cpu", feature.dtype, enabled=feature.dtype is not None):
                loss = loss_of(model, part) / feature.accumulate
            scaler.scale(loss * (float("inf") if overflows else 1.0)).backward()
        if feature.clip is not None:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), feature.clip)
        scaler.step(optimizer)
        scaler.update()
        if scheduler is not None:
            scheduler.step()
    with torch.autocast("cpu", feature.dtype, enabled=feature.inside_autocast):
        guard.consolidate(batches(task))


def assert_near(found, expected, tolerance):
    for name, value in expected.items():
        error = (found[name].double() - value).norm() / value.norm()
        assert float(error) < tolerance, (name, float(error))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize(
    ("feature", "optimizer"),
    [(name, "nesterov") for name in FEATURES] + [(name, "Adam") for name in ("accumulation", "scaler")],
)
def test_a_feature_of_the_loop_changes_nothing_else(feature, optimizer, measure, implementation):
    feature, make = FEATURES[feature], OPTIMIZERS[optimizer]
    model = Net(**feature.net)
    guard = anchorhold.Guard(
        model, MEASURES[measure], strength=STRENGTH, options=anchorhold.GuardOptions(implicit=False)
    )
    for task in (1, 2):
        stepping = make(model.parameters(), **IMPLEMENTATIONS[implementation])
        guard.attach(stepping)
        train(model, stepping, guard, task, feature)
    anchor, total = truth(measure, optimizer, feature.clip, feature.rates)
    assert_near(weights(model), anchor, feature.tolerance)
    assert_near(guard.anchor, anchor, feature.tolerance)
    assert_near(guard.importance, total, feature.tolerance)


# Scalers, more closely


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("observed", [False, True])
def test_two_optimizers_of_which_one_overflows(observed, implementation):
    """The scaler skips one of them alone: that one is seen as skipped, and the other one with its own gradients."""

    def run(overflows):
        model = Net()
        guard = anchorhold.Guard(model, anchorhold.SIB() if observed else anchorhold.SI(), watch=["SOS"])
        parts = (model.body, model.head)
        optimizers = [OPTIMIZERS["Adam"](part.parameters(), **IMPLEMENTATIONS[implementation]) for part in parts]
        guard.attach(*optimizers)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
        for i, data in enumerate(batches(1)):
            for optimizer in optimizers:
                optimizer.zero_grad()
            scaler.scale(loss_of(model, data)).backward()
            if observed:
                guard.gradients.observe(loss_of(model, data))
                guard.gradients.independent(loss_of(model, batches(2)[i]))
            skipped = i == 2
            if skipped and overflows:
                model.body[0].weight.grad[0, 0] = float("inf")
            if skipped and not overflows:
                scaler.step(optimizers[1])
            else:
                for optimizer in optimizers:
                    scaler.step(optimizer)
            scaler.update()
        return weights(model), guard.state_dict()

    (overflowed, state), (left_out, expected) = run(True), run(False)
    assert state["steps"] == expected["steps"]
    assert_near(overflowed, left_out, SINGLE)
    assert_near(state["tensors"], expected["tensors"], SINGLE)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_losses_given_to_the_guard_under_a_scaler(implementation):
    """float16 loses small gradients unless the loss is scaled, those that are only observed too."""
    tiny = 2.0**-16  # of a loss whose gradients vanish in float16

    def run(dtype, halves):
        model = Net()
        guard = anchorhold.Guard(model, anchorhold.SOS(alpha=1.0, normalise=False))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, **IMPLEMENTATIONS[implementation])
        guard.attach(optimizer)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14, enabled=dtype is not None)
        for x, y in batches(1):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype, enabled=dtype is not None):
                first, second = (tiny * loss_of(model, half) for half in ((x[:4], y[:4]), (x[4:], y[4:])))
            if halves:
                guard.gradients.halves(first, second, scaler=scaler)
            else:
                guard.gradients.independent(second, scaler=scaler)
                scaler.scale(first).backward()
            scaler.step(optimizer)
            scaler.update()
        return {name: value / tiny for name, value in guard.consolidate()["SOS"].importance.items()}

    for halves in (True, False):
        assert_near(run(torch.float16, halves), {k: v.double() for k, v in run(None, halves).items()}, HALF)


def test_an_observed_gradient_that_overflows_at_the_scale_is_taken_without_it():
    model = Net()
    guard = anchorhold.Guard(model, anchorhold.SIU())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    guard.attach(optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    guard.gradients.independent(loss_of(model, batches(1)[0]) * 8, scaler=scaler)
    loss_of(model, batches(1)[0]).backward()
    optimizer.step()
    assert all(bool(value.isfinite().all()) for value in guard.gradients.path.running["SIU"]["path"].values())
    assert any(bool(value.any()) for value in guard.gradients.path.running["SIU"]["path"].values())


@pytest.mark.parametrize("way", ["observe", "observe_independent", "backward_halves"])
def test_micro_batches_are_observed_together(way):
    """Parts of a batch, each with its share of the loss, give what the batch as a whole gives."""

    def run(parts):
        model = Net().double()
        guard = anchorhold.Guard(model, anchorhold.SOS(alpha="unbiased" if way != "observe" else 0.0))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        guard.attach(optimizer)
        for (x, y), (x2, y2) in zip(batches(1), batches(2), strict=True):
            optimizer.zero_grad()
            for i in range(parts):
                share = slice(i * 8 // parts, (i + 1) * 8 // parts)
                first = loss_of(model, (x[share].double(), y[share])) / parts
                second = loss_of(model, (x2[share].double(), y2[share])) / parts
                if way == "backward_halves":
                    guard.gradients.halves(first, second, samples=8, accumulate=i > 0)
                    continue
                first.backward()
                if way == "observe":
                    guard.gradients.observe(second, accumulate=i > 0)
                else:
                    guard.gradients.independent(second, samples=8, accumulate=i > 0)
            optimizer.step()
        return guard.consolidate()["SOS"].importance

    assert_near(run(parts=4), run(parts=1), 1e-6)  # the loss itself is float32


def test_float16_weights_are_held_without_overflow():
    """At a scaler's scale, the penalty's gradient soon leaves float16's range, after the scaler has looked."""
    model = nn.Linear(4, 3).half()
    guard = anchorhold.Guard(model, anchorhold.L2(), strength=10.0)
    guard.consolidate()
    with torch.no_grad():
        model.weight.add_(1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    guard.attach(optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    scaler.scale(model(torch.zeros(2, 4).half()).float().sum() / 16).backward()
    before = model.weight.detach().clone()
    scaler.step(optimizer)
    assert bool((model.weight < before).all()) and bool(model.weight.isfinite().all())


# Optimizers


def test_an_optimizer_that_begins_to_overwrite_gradients_is_noticed(monkeypatch):
    monkeypatch.setattr(bundles, "SMALL", 0)  # small parameters are measured from copies anyway
    model = Net()
    guard = anchorhold.Guard(model, anchorhold.SI())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, foreach=True)
    guard.attach(optimizer)
    one, two, three, *_ = batches(1)
    for data in (one, two):
        optimizer.zero_grad()
        loss_of(model, data).backward()
        optimizer.step()
    optimizer.param_groups[0]["nesterov"] = True
    optimizer.zero_grad()
    loss_of(model, three).backward()
    with pytest.warns(anchorhold.AnchorholdWarning, match="SGD has begun to overwrite gradients"):
        optimizer.step()
    optimizer.step()  # measured from copies, so without another word


def test_a_closure_that_returns_nothing():
    model, twin = Net(), Net()
    guards = [anchorhold.Guard(m, anchorhold.SI(), strength=STRENGTH) for m in (model, twin)]
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.05) for m in (model, twin)]
    for task in (1, 2):
        for guard, optimizer in zip(guards, optimizers, strict=True):
            guard.attach(optimizer)
        for data in batches(task):
            for optimizer in optimizers:
                optimizer.zero_grad()
            optimizers[0].step(lambda data=data: loss_of(model, data).backward())
            optimizers[0].zero_grad()
            optimizers[0].step(lambda: None)  # a batch that the user leaves out
            loss_of(twin, data).backward()
            optimizers[1].step()
        for guard in guards:
            guard.consolidate()
    assert_near(weights(model), weights(twin), 1e-6)
    assert_near(guards[0].importance, guards[1].importance, 1e-6)


def test_master_weights_are_recognised():
    model = nn.Linear(4, 3).bfloat16()
    master = [parameter.detach().float().requires_grad_() for parameter in model.parameters()]
    guard = anchorhold.Guard(model, anchorhold.SOS())
    with pytest.raises(anchorhold.errors.OptimizerError, match=r"master weights.*torch.autocast"):
        guard.attach(torch.optim.SGD(master, lr=0.1))


# Compiling


@pytest.fixture
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def held_by(model, trained, measure, compiled=lambda step: step):
    """Train ``trained`` for two tasks with a guard of ``model``."""
    guard = anchorhold.Guard(model, MEASURES[measure], strength=STRENGTH)
    for task in (1, 2):
        optimizer = OPTIMIZERS["Adam"](model.parameters())
        guard.attach(optimizer)
        step = compiled(optimizer.step)
        for data in batches(task):
            optimizer.zero_grad()
            loss_of(trained, data).backward()
            step()
        guard.consolidate(batches(task))
    return guard


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("guarded", ["compiled", "original", "part"])
def test_compiled_models(guarded, measure):
    """A guard of the compiled model, of the one inside, or of one with a compiled part: the same names, the same Ω."""
    model = Net()
    if guarded == "part":
        model.body = torch.compile(model.body, backend="eager")
        guard = held_by(model, model, measure)
    else:
        compiled = torch.compile(model, backend="aot_eager")
        guard = held_by(compiled if guarded == "compiled" else model, compiled, measure)
    anchor, total = truth(measure, "Adam")
    assert list(guard.parameters) == list(anchor)
    assert_near(guard.anchor, anchor, SINGLE)
    assert_near(guard.importance, total, SINGLE)
    plain = anchorhold.Guard(Net(), MEASURES[measure], strength=STRENGTH, protect="*")
    plain.load_state_dict(guard.state_dict())
    assert plain.tasks == 2


@pytest.mark.usefixtures("fresh_compiler")
def test_patterns_and_importances_know_no_wrapper():
    compiled = torch.compile(Net(), backend="eager")
    assert list(anchorhold.Guard(compiled, "SOS", protect="head.*").parameters) == ["head.weight", "head.bias"]
    inside = nn.Sequential(torch.optim.swa_utils.AveragedModel(nn.DataParallel(Net())))
    assert list(anchorhold.Fisher().measure(inside, [batches(1)[0][0]])) == [
        f"0.{name}" for name in dict(weights(Net()))
    ]


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")
@pytest.mark.parametrize("measure", ["SI", "SOS"])
def test_a_compiled_step_is_watched(measure):
    model = Net()
    guard = held_by(model, model, measure, compiled=lambda step: torch.compile(step, backend="eager"))
    anchor, total = truth(measure, "Adam")
    assert_near(guard.anchor, anchor, SINGLE)
    assert_near(guard.importance, total, SINGLE)


@pytest.mark.nightly
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")
def test_the_default_compiler(monkeypatch):
    monkeypatch.setattr("torch._inductor.config.compile_threads", 1)  # no pool of processes for one small network
    model = Net()
    guard = held_by(model, torch.compile(model), "SI")
    anchor, total = truth("SI", "Adam")
    assert_near(guard.anchor, anchor, SINGLE)
    assert_near(guard.importance, total, SINGLE)


# Checkpointing activations, averaging weights, and where consolidate() is called


@pytest.mark.parametrize("name", ["EWC", "MAS", "AF"])
def test_re_entrant_checkpoints_hide_nothing_from_a_measure(name):
    """Nothing in the graph leads to what is inside, so its importance would be 0 without a sign of it."""

    class Checkpointed(Net):
        def forward(self, x):
            return self.head(checkpoint(self.body, x, use_reentrant=True))

    measure, data = anchorhold.measures.measure(name), [batches(1)[0][0]]
    assert_near(measure.measure(Checkpointed(), data), measure.measure(Net(), data), 1e-6)
    x = batches(1)[0][0].requires_grad_()
    Checkpointed()(x).sum().backward()  # and outside of measuring, checkpoints are what they were
    assert "CheckpointFunction" in str(checkpoint(Net(), x, use_reentrant=True).grad_fn)


def test_the_average_of_the_weights_is_consolidated():
    model = Net()
    model.register_buffer("seen", torch.zeros(()))
    ema = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.5))
    guard = anchorhold.Guard(model, anchorhold.Fisher(), strength=STRENGTH, watch=["SI"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    for data in batches(1):
        optimizer.zero_grad()
        loss_of(model, data).backward()
        optimizer.step()
        ema.update_parameters(model)
    last = weights(model)
    with anchorhold.averaged_weights(model, ema):
        guard.consolidate(batches(1))
    assert all(torch.equal(last[name], value) for name, value in weights(model).items())
    assert_near(guard.anchor, weights(ema.module), 1e-7)
    expected = anchorhold.Fisher().measure(ema.module, batches(1))
    assert_near(guard.importance, expected, 1e-6)
    with pytest.raises(anchorhold.errors.ConfigurationError, match="the average none of that name"):
        anchorhold.averaged_weights(model, nn.Linear(4, 3)).__enter__()
    with pytest.raises(RuntimeError, match="stop"), anchorhold.averaged_weights(model, ema):
        raise RuntimeError("stop")
    assert all(torch.equal(last[name], value) for name, value in weights(model).items())


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize(
    "where",
    [torch.no_grad(), torch.inference_mode(), torch.autocast("cpu", torch.bfloat16)],
    ids=lambda where: type(where).__name__,
)
def test_consolidating_anywhere(where, measure):
    """As in a validation hook: the state is one that the next task can be trained with."""

    def run(context):
        model = Net()
        guard = anchorhold.Guard(model, MEASURES[measure], strength=STRENGTH)
        for task in (1, 2):
            optimizer = OPTIMIZERS["Adam"](model.parameters())
            guard.attach(optimizer)
            for data in batches(task):
                optimizer.zero_grad()
                loss_of(model, data).backward()
                optimizer.step()
            with context or torch.enable_grad():
                guard.consolidate(batches(task))
        guard.detach()
        guard.penalty().backward()
        return guard

    found, expected = run(where), run(None)
    assert_near(found.importance, expected.importance, 1e-6)
    assert_near(found.anchor, expected.anchor, 1e-6)


def test_the_page():
    assert run_page("guides/real-loops.md")["guard"].tasks == 1
