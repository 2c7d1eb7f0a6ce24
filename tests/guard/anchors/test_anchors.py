"""Where the hold is centred, against the sum of all tasks' penalties written out, in float64."""

import pytest
import torch
from torch import nn

import anchorhold
from anchorhold.errors import BatchError, ConfigurationError, NotFiniteError, StateError
from anchorhold.forms import FORMS, Diagonal, Kronecker, Rotated, register_form
from tests.forms.toy_dense import ToyDense
from tests.forms.toy_kronecker import ToyKronecker
from tests.guard.helpers import batch, loss, net, weights
from tests.helpers import grouped

if "toy-dense" not in FORMS:
    register_form("toy-dense")(ToyDense)

FORMS_TRIED = pytest.mark.parametrize("form", ["diagonal", "toy-dense"])
CLOSE = {"rtol": 1e-10, "atol": 1e-12}


def regression(inputs=3, outputs=2):
    torch.manual_seed(0)
    return nn.Linear(inputs, outputs).double()


def data(seed, n=12, inputs=3, outputs=2):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, inputs, generator=generator, dtype=torch.float64)
    return x, torch.randn(n, outputs, generator=generator, dtype=torch.float64)


def half_square(model, task):
    """The loss of a task: the mean over samples of ½|y − f|², whose Hessian is the Gaussian Fisher information."""
    return 0.5 * (model(task[0]) - task[1]).square().sum(1).mean()


def row(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def put(model, values):
    nn.utils.vector_to_parameters(values, list(model.parameters()))


def moved(model, seed):
    generator = torch.Generator().manual_seed(100 + seed)
    put(model, row(model) + torch.randn(row(model).shape, generator=generator, dtype=torch.float64))


def guard_of(model, form="diagonal", strength=0.5, **settings):
    return anchorhold.Guard(
        model,
        anchorhold.Fisher(likelihood="gaussian"),
        strength=strength,
        form=form,
        anchor="mean",
        **grouped(**settings),
    )


def hessian(model, task):
    return torch.autograd.functional.hessian(
        lambda theta: (
            0.5 * (torch.func.functional_call(model, _named(model, theta), task[0]) - task[1]).square().sum(1).mean()
        ),
        row(model),
    )


def _named(model, theta):
    parts = theta.split([p.numel() for p in model.parameters()])
    return {name: part.view_as(p) for (name, p), part in zip(model.named_parameters(), parts, strict=True)}


def gradient(model, value):
    return torch.cat([g.flatten() for g in torch.autograd.grad(value, list(model.parameters()))])


def of_every_task(model, form, tasks, strength, decay, *, slopes):
    """Return the sum of all tasks' penalties as a function of the weights, and its gradient, from the formula."""
    terms = []
    for age, (task, theta) in enumerate(reversed(tasks)):
        put(model, theta)
        h, g = hessian(model, task), gradient(model, half_square(model, task))
        h = h.diagonal().diag() if form == "diagonal" else h
        terms.append((decay**age, h, theta, g if slopes else torch.zeros_like(g)))

    def value(theta):
        return strength * sum(w * ((theta - t) @ h @ (theta - t) + 2 * (theta - t) @ g) for w, h, t, g in terms)

    def slope(theta):
        return 2 * strength * sum(w * (h @ (theta - t) + g) for w, h, t, g in terms)

    return value, slope


@FORMS_TRIED
@pytest.mark.parametrize("decay", [1.0, 0.6])
@pytest.mark.parametrize("slopes", [False, True])
def test_the_mean_is_the_sum_of_all_tasks_penalties(form, decay, slopes):
    model = regression()
    guard, tasks = guard_of(model, form, 0.7, decay=decay, gradient_term=slopes), []
    for seed in range(3):
        moved(model, seed)
        guard.consolidate([data(seed)])
        tasks.append((data(seed), row(model)))
    value, slope = of_every_task(model, form, tasks, 0.7, decay, slopes=slopes)
    values = []
    for seed in (10, 11):
        moved(model, seed)
        own = guard.penalty()
        torch.testing.assert_close(gradient(model, own), slope(row(model)), **CLOSE)
        values.append(own.detach() - value(row(model)))
    torch.testing.assert_close(values[0], values[1], **CLOSE)  # the constant, which is left out
    put(model, torch.cat([guard.anchor[name].flatten() for name, _ in model.named_parameters()]))
    assert guard.penalty() == 0
    last = anchorhold.Guard(model, anchorhold.Fisher(likelihood="gaussian"), strength=0.7, form=form, decay=decay)
    for task, theta in tasks:
        put(model, theta)
        last.consolidate([task])
    moved(model, 12)
    assert not torch.allclose(gradient(model, last.penalty()), slope(row(model)), rtol=1e-2)


@FORMS_TRIED
@pytest.mark.parametrize("slopes", [False, True])
@pytest.mark.parametrize("closure", [False, True])
def test_a_step_is_pulled_by_it(form, slopes, closure):
    model = regression()
    guard, tasks = guard_of(model, form, 0.7, gradient_term=slopes, implicit=False), []
    for seed in range(2):
        moved(model, seed)
        guard.consolidate([data(seed)])
        tasks.append((data(seed), row(model)))
    _, slope = of_every_task(model, form, tasks, 0.7, 1.0, slopes=slopes)
    moved(model, 5)
    before = row(model)
    task = gradient(model, half_square(model, data(5)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)

    def evaluate():
        optimizer.zero_grad()
        value = half_square(model, data(5))
        value.backward()
        return value

    if closure:
        optimizer.step(evaluate)
    else:
        evaluate()
        optimizer.step()
    torch.testing.assert_close(row(model), before - 0.1 * (task + slope(before)), **CLOSE)


def trained(form, *, stopped_early, steps=4, **settings):
    """Return a model after three regressions, the last one learned to its end, and the solution of all together."""
    model = regression()
    measure = anchorhold.Fisher(likelihood="gaussian")
    guard = anchorhold.Guard(model, measure, strength=0.5, form=form, from_scratch=True, **grouped(**settings))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    tasks = [orthogonal(seed) if form == "diagonal" else data(seed) for seed in range(3)]
    for number, task in enumerate(tasks):
        guard.attach(optimizer)
        for _ in range(steps if stopped_early else 0):
            optimizer.zero_grad()
            half_square(model, task).backward()
            optimizer.step()
        guard.detach()
        if number == 2 or not stopped_early:
            solve(model, guard, task)
        if number < 2:
            guard.consolidate([task])
    return guard, row(model), joint_solution(model, tasks)


def joint_solution(model, tasks):
    """Return the weights that solve all regressions together."""
    x, y = (torch.cat(parts) for parts in zip(*tasks, strict=True))
    solution = torch.linalg.lstsq(torch.cat([x, torch.ones_like(x[:, :1])], 1), y).solution.T
    joint = {"weight": solution[:, :-1], "bias": solution[:, -1]}
    return torch.cat([joint[name].flatten() for name, _ in model.named_parameters()])


def orthogonal(seed, n=12):
    """Return a regression whose Hessian is diagonal: the inputs' columns, and the bias's 1, are orthogonal."""
    generator = torch.Generator().manual_seed(seed)
    columns = torch.cat([torch.ones(n, 1), torch.randn(n, 3, generator=generator)], 1).double()
    q, _ = torch.linalg.qr(columns)
    scale = n**0.5 * torch.rand(3, generator=generator, dtype=torch.float64).add(0.5)
    return q[:, 1:] * scale, torch.randn(n, 2, generator=generator, dtype=torch.float64)


def solve(model, guard, task):
    """Go to the minimum of a task's loss with the hold, which is a quadratic."""
    slopes = []
    here = row(model)
    for direction in torch.cat([torch.zeros(1, len(here)), torch.eye(len(here))]).double():
        put(model, here + direction)
        slopes.append(gradient(model, half_square(model, task) + guard.penalty()))
    put(model, here - torch.linalg.solve(torch.stack([s - slopes[0] for s in slopes[1:]]), slopes[0]))


@FORMS_TRIED
@pytest.mark.parametrize("stopped_early", [False, True])
def test_sola_recovers_the_joint_solution_of_linear_regression(form, stopped_early):
    guard, found, joint = trained(form, stopped_early=stopped_early, anchor="mean", gradient_term=True)
    assert (found - joint).abs().max() < 1e-10
    largest = max(float(r.abs().max()) for r in guard.held.linear_term.values())
    assert largest > 0.1 if stopped_early else largest < 1e-10


@FORMS_TRIED
@pytest.mark.parametrize("anchor", ["last", "mean"])
def test_without_the_gradient_term_early_stops_are_not_made_up_for(form, anchor):
    _, found, joint = trained(form, stopped_early=True, anchor=anchor)
    assert (found - joint).abs().max() > 1e-2


@FORMS_TRIED
def test_once_tasks_have_converged_under_the_hold_the_last_solution_stands_for_all(form):
    """Where each task's gradient and the hold's are equal and opposite, there is no slope left at the solution."""
    _, found, joint = trained(form, stopped_early=False, anchor="last")
    assert (found - joint).abs().max() < 1e-10


@FORMS_TRIED
@pytest.mark.parametrize("hold", [True, False])
def test_an_optimizer_of_closures_finds_the_joint_solution(form, hold):
    """Which wants the value too; held by the guard, or with the penalty in the loss."""
    model = regression()
    guard = guard_of(model, form, gradient_term=True)
    tasks = [orthogonal(seed) if form == "diagonal" else data(seed) for seed in range(3)]
    for seed, task in enumerate(tasks[:2]):
        moved(model, seed)
        guard.consolidate([task])
    optimizer = torch.optim.LBFGS(
        model.parameters(), max_iter=200, tolerance_grad=1e-13, tolerance_change=0.0, line_search_fn="strong_wolfe"
    )
    guard.attach(optimizer, hold=hold)

    def evaluate():
        optimizer.zero_grad()
        value = half_square(model, tasks[2]) + (0.0 if hold else guard.penalty())
        value.backward()
        return value

    optimizer.step(evaluate)
    # Values that a line search compares are flat to their last digit this near.
    assert (row(model) - joint_solution(model, tasks)).abs().max() < 1e-7


def test_the_term_of_a_task_that_has_converged_by_itself_is_zero():
    model = regression()
    guard = guard_of(model, "toy-dense", gradient_term=True)
    solve(model, guard, data(0))
    guard.consolidate([data(0)])
    assert max(float(r.abs().max()) for r in guard.held.linear_term.values()) < 1e-12


@FORMS_TRIED
@pytest.mark.parametrize("slopes", [False, True])
def test_a_state_in_the_middle_of_a_sequence_goes_on_to_the_last_bit(tmp_path, form, slopes):
    def steps(model, guard, optimizer, seeds):
        for seed in seeds:
            optimizer.zero_grad()
            half_square(model, data(seed)).backward()
            optimizer.step()

    def made():
        model = regression()
        guard = guard_of(model, form, gradient_term=slopes, decay=0.9, from_scratch=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        guard.attach(optimizer)
        return model, guard, optimizer

    model, guard, optimizer = made()
    for seed in range(2):
        steps(model, guard, optimizer, [seed])
        guard.consolidate([data(seed)])
    steps(model, guard, optimizer, [7])
    guard.save(tmp_path / "guard.safetensors")
    again, resumed, stepping = made()
    again.load_state_dict(model.state_dict())
    resumed.load(tmp_path / "guard.safetensors")
    assert (guard.held.linear_term.keys() == dict(model.named_parameters()).keys()) == (slopes or form != "diagonal")
    for each, own, by in ((model, guard, optimizer), (again, resumed, stepping)):
        steps(each, own, by, [8, 9])
        own.consolidate([data(9)])
        steps(each, own, by, [10])
    assert torch.equal(row(model), row(again))
    assert all(
        torch.equal(guard.held.linear_term[name], resumed.held.linear_term[name]) for name in guard.held.linear_term
    )
    assert all(torch.equal(guard.anchor[name], resumed.anchor[name]) for name in guard.anchor)


def test_a_state_says_only_what_is_not_as_usual_and_fits_only_where_it_is_so():
    usual = anchorhold.Guard(regression(), anchorhold.Fisher(likelihood="gaussian"))
    usual.consolidate([data(0)])
    assert not {"anchor", "gradient_term"} & usual.state_dict().keys()
    guard = guard_of(regression(), gradient_term=True)
    guard.consolidate([data(0)])
    state = guard.state_dict()
    assert (state["anchor"], state["gradient_term"]) == ("mean", True)
    assert {"tilt/weight", "tilt/bias"} <= state["tensors"].keys()
    with pytest.raises(StateError, match=r"made with anchor=mean; this Guard has anchor=last"):
        usual.load_state_dict(state)
    with pytest.raises(StateError, match=r"made with gradient_term=True; .* gradient_term=False"):
        guard_of(regression()).load_state_dict(state)


def sequence(form, **settings):
    """Return a network and its guard after three tasks, and a guard for each of them alone, all elsewhere by now."""
    model = nn.Sequential(nn.Conv1d(1, 2, 2), nn.Tanh(), nn.Flatten(), nn.Linear(6, 3), nn.LayerNorm(3)).double()
    guard = anchorhold.Guard(model, anchorhold.Fisher(), strength=0.7, form=form, anchor="mean", **grouped(**settings))
    alone = []
    for seed in range(3):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
        task = [(x.unsqueeze(1), y) for x, y in [batch(seed)]]
        alone.append(
            anchorhold.Guard(
                model, anchorhold.Fisher(), strength=0.7, form=form, **grouped(**{"anchor": "mean", **settings})
            )
        )
        for each in (guard, alone[-1]):
            each.consolidate(task)
    moved(model, 9)
    return model, guard, alone


@pytest.mark.parametrize(
    "form", [Rotated(sums="exact"), Kronecker(sums="exact"), Diagonal()], ids=lambda form: form.name
)
@pytest.mark.parametrize("slopes", [False, True])
def test_of_any_form_whose_sums_are_exact_it_is_what_guards_of_one_task_each_add_up_to(form, slopes):
    torch.manual_seed(0)
    model, guard, alone = sequence(form, gradient_term=slopes)
    expected = sum(gradient(model, each.penalty()) for each in alone)
    torch.testing.assert_close(gradient(model, guard.penalty()), expected, **CLOSE)


def test_where_sums_are_not_exact_the_tilt_is_that_of_the_total_as_it_is():
    torch.manual_seed(0)
    model = regression()
    guard = guard_of(model, "rotated")
    expected = dict.fromkeys(guard.parameters, 0.0)
    for seed in range(3):
        moved(model, seed)
        d = {name: p.detach() - guard.anchor[name] for name, p in guard.parameters.items()} if seed else {}
        for matrix in guard.held.matrices.values():
            expected |= {name: expected[name] - pull for name, pull in matrix.apply(d).items()}
        guard.consolidate([data(seed)])
    for name, r in guard.held.linear_term.items():
        torch.testing.assert_close(r, expected[name], **CLOSE)


def test_what_it_takes_is_told():
    usual, leaning = (guard_of(regression(), gradient_term=slopes).cost() for slopes in (False, True))
    weights = 8 * usual.weights  # one tensor more of them is kept, and one more is summed up
    assert leaning.kept == usual.kept + weights and leaning.measuring == usual.measuring + weights


def test_weights_that_no_task_needs_are_held_to_the_last_solution():
    model = nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 2)).double()
    guard = guard_of(model)
    with torch.no_grad():
        model[0].weight[0] = -1.0
        model[0].bias[0] = -100.0  # a unit that is never on
    guard.consolidate([data(0)])
    first = weights(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1)
    guard.consolidate([data(1)])
    assert not guard.importance["0.weight"][0].any()
    assert torch.equal(guard.anchor["0.weight"][0], model[0].weight[0])
    between = guard.anchor["0.weight"][1]
    assert ((between > first["0.weight"][1]) & (between < model[0].weight[1])).all()


@pytest.mark.parametrize(("total", "old"), [("add", 1.0), ("replace", 0.0), ("average", 1.0)])
def test_the_mean_is_weighted_as_the_total_is_made(total, old):
    class Constant(anchorhold.measures.WeightMeasure):
        choose_when = "never"

        def importance(self, weight):
            return torch.full_like(weight, 2.0 if weight.max() == 1 else 6.0)

    Constant.total = total
    model = nn.Linear(2, 1, bias=False).double()
    guard = anchorhold.Guard(model, Constant(), anchor="mean")
    for value in (1.0, 5.0):
        with torch.no_grad():
            model.weight.fill_(value)
        guard.consolidate()
    torch.testing.assert_close(guard.anchor["weight"], torch.full((1, 2), (old * 2 + 6 * 5) / (old * 2 + 6)).double())


def test_a_measure_along_the_path_takes_the_gradient_from_the_batches_it_is_given():
    model = net()
    guard = anchorhold.Guard(
        model,
        "SOS",
        strength=0.5,
        anchor="mean",
        options=anchorhold.GuardOptions(gradient_term=True),
        from_scratch=True,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    loss(model, batch(0)).backward()
    optimizer.step()
    before = guard.state_dict()["tensors"]
    for refused in (guard.consolidate, guard.rehearse):
        with pytest.raises(BatchError, match=r"gradient_term=True takes the gradient .* consolidate\(batches\)"):
            refused()
    for unlabelled in (guard.consolidate, guard.rehearse):
        with pytest.raises(BatchError, match=r"gradient_term=True needs the true label of every sample and got none"):
            unlabelled([batch(0)[0]])
    assert guard.tasks == 0 and guard.state_dict()["tensors"].keys() == before.keys()
    guard.consolidate([batch(1)])
    expected = torch.autograd.grad(loss(model, batch(1)), list(model.parameters()))
    for (name, _), g in zip(model.named_parameters(), expected, strict=True):
        torch.testing.assert_close(guard.held.linear_term[name], -g, **CLOSE)


def test_what_cannot_be_consolidated_leaves_everything_as_it_was():
    model = regression()
    guard = guard_of(model, "toy-dense", gradient_term=True)
    guard.consolidate([data(0)])
    kept = {key: tensor.clone() for key, tensor in guard.state_dict()["tensors"].items()}
    with pytest.raises(BatchError, match="true label"):
        guard.consolidate([data(1)[0]])
    with torch.no_grad():
        model.weight.fill_(1.7e308)
    with pytest.raises(NotFiniteError, match=r"penalties has a gradient at 'weight' that is not finite, so nothing"):
        guard.consolidate([(torch.zeros(4, 3).double(), torch.zeros(4, 2).double())])
    assert guard.tasks == 1
    assert all(torch.equal(tensor, kept[key]) for key, tensor in guard.state_dict()["tensors"].items())


def test_forgetting_a_part_lets_go_of_the_tilt_of_its_block():
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3, bias=False)).double()
    guard = anchorhold.Guard(
        model,
        anchorhold.Fisher(),
        form=ToyKronecker(),
        anchor="mean",
        options=anchorhold.GuardOptions(gradient_term=True),
    )
    guard.consolidate([batch(0)])
    assert guard.held.linear_term.keys() == {"0.weight", "0.bias", "2.weight"}
    with pytest.warns(anchorhold.AnchorholdWarning, match="in one matrix with '0.weight'"):
        guard.forget("0.bias")
    assert guard.held.linear_term.keys() == {"2.weight"}


def test_what_is_kept_may_lie_in_fewer_bits():
    model = regression().float()
    guard = guard_of(model, "toy-dense", gradient_term=True, state_dtype=torch.bfloat16)
    guard.consolidate([tuple(part.float() for part in data(0))])
    assert {r.dtype for r in guard.held.linear_term.values()} == {torch.bfloat16}
    put(model, row(model) + 0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before, pull = row(model), gradient(model, guard.penalty())
    guard.attach(optimizer)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    torch.testing.assert_close(row(model), before - 0.1 * pull)


def test_at_strength_zero_there_is_no_linear_term():
    model = regression()
    guard = guard_of(model, "toy-dense", 0.0, gradient_term=True)
    guard.consolidate([data(0)])
    moved(model, 1)
    assert guard.penalty() == 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    before = row(model)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert torch.equal(row(model), before)


def test_it_is_said_what_weights_are_held_to():
    model = regression()
    guard = guard_of(model, gradient_term=True)
    guard.consolidate([data(0)])
    assert "to what they were after task 1, with the gradients of losses there" in str(guard)
    moved(model, 1)
    guard.consolidate([data(1)])
    shown = str(guard)
    assert "to what they were after 2 tasks, their mean by importance, with the gradients of losses there" in shown
    assert "no weight has moved since" in shown
    moved(model, 2)
    assert f"the penalty is {guard.penalty().item():.3g}" in str(guard)
    plain = guard_of(model)
    for seed in range(2):
        moved(model, seed)
        plain.consolidate([data(seed)])
    assert "after 2 tasks, their mean by importance\n" in str(plain) and "moved from there by" in str(plain)


@pytest.mark.daily
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"anchor": "median"}, r"anchor='median': expected 'last', .* or 'mean'"),
        ({"anchor": "mean", "gradient_term": 1}, r"gradient_term=1: expected True or False"),
        ({"gradient_term": True}, r"gradient_term=True with anchor='last': .* Give anchor='mean', which is SOLA"),
        (
            {"measure": anchorhold.SI(clamp="total"), "anchor": "mean"},
            r"anchor='mean' with SI, whose total has importances below 0.*clamp='task'",
        ),
    ],
)
def test_what_is_no_centre_is_refused(settings, message):
    with pytest.raises(ConfigurationError, match=message):
        anchorhold.Guard(regression(), **grouped(**{"measure": "EWC", **settings}))
