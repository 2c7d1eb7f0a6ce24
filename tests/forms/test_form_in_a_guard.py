"""A form that is no diagonal, from measuring to holding, against the dense matrix in float64."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import anchorhold
from anchorhold.errors import ConfigurationError, ModelError, StateError
from anchorhold.forms import FORMS, register_form
from tests import helpers
from tests.forms.toy_kronecker import ToyKronecker

if "toy-kronecker" not in FORMS:
    register_form("toy-kronecker")(ToyKronecker)

STRENGTH = 0.7


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3, bias=False)).double()


def data(seed=0, n=40):
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(n, 4, generator=generator, dtype=torch.float64), torch.randint(3, (n,), generator=generator))]


def guarded(model, measure=None, **settings):
    measure = measure or anchorhold.Fisher()
    return helpers.guarded(model, data(), measure, STRENGTH, form=ToyKronecker(), **settings)


def factors(model, x):
    """Return A and G of both layers by their definitions: labels weighted by the model's probabilities, one by one."""
    inputs, found = {}, {}
    layers = {"0": model[0], "2": model[2]}
    for name, layer in layers.items():
        layer.register_forward_hook(lambda _, args, out, name=name: inputs.update({name: (args[0], out)}))
    for sample in x:
        for label in range(3):
            logits = model(sample[None])
            q = logits.softmax(-1)[0, label].detach()
            outs = [inputs[name][1] for name in layers]
            deltas = torch.autograd.grad(F.log_softmax(logits, -1)[0, label], outs)
            for (name, layer), delta in zip(layers.items(), deltas, strict=True):
                a = inputs[name][0].detach()
                a = torch.cat([a, torch.ones(1, 1, dtype=a.dtype)], 1) if layer.bias is not None else a
                g_sum, a_sum = found.get(name, (0, 0))
                found[name] = g_sum + q * delta.T @ delta / len(x), a_sum + q * a.T @ a / len(x)
    return found


def dense(guard, name):
    """Return the matrix of a block over its weights, row by row of [W b]."""
    matrix = guard.held.matrices[name]
    return torch.kron(matrix.g, matrix.a)


def joined(guard, model, name):
    parameters = dict(model.named_parameters())
    d = {n: (parameters[n] - guard.anchor[n]).detach() for n in guard.held.matrices[name].block.parameters}
    return guard.held.matrices[name]._joined(d).flatten()


def moved(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, dtype=torch.float64))


def test_the_engine_brings_what_the_factors_are_made_of():
    model = network()
    expected = factors(copy.deepcopy(model), data()[0][0])
    matrices = guarded(model).held.matrices
    assert matrices.keys() == expected.keys() == {"0", "2"}
    for name, (g, a) in expected.items():
        torch.testing.assert_close(matrices[name].g, g, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(matrices[name].a, a, rtol=1e-10, atol=1e-12)


def test_rows_in_blocks_count_inputs_once():
    model, measure = network(), anchorhold.Fisher()
    form = ToyKronecker()
    whole, cut = (
        anchorhold.engine.SampleAccumulator(
            model,
            measure.score,
            measure.phi,
            budget=budget,
            reduction=lambda parameters: form.reduction(measure, form.blocks(model, parameters), parameters, {}),
        )
        for budget in (None, 1)
    )
    for collector in (whole, cut):
        found = collector.result_of(data()).values
        assert torch.allclose(found["0/A"][-1, -1], torch.ones((), dtype=torch.float64))  # the mean of the bias's 1·1
    for key, value in whole.result().values.items():
        torch.testing.assert_close(cut.result().values[key], value, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("closure", [False, True])
def test_a_step_is_held_by_the_dense_matrix(closure):
    model = network()
    guard = guarded(model)
    moved(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    x, y = data(1)[0]

    def loss():
        optimizer.zero_grad()
        value = F.cross_entropy(model(x), y)
        value.backward()
        return value

    task = dict(zip(before, torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters())), strict=True))
    pulls = {name: 2 * STRENGTH * dense(guard, name) @ joined(guard, model, name) for name in guard.held.matrices}
    if closure:
        optimizer.step(loss)
    else:
        loss()
        optimizer.step()
    for name, matrix in guard.held.matrices.items():
        shape = matrix.g.shape[0], matrix.a.shape[0]
        for parameter, pull in matrix._cut(pulls[name].view(shape)).items():
            expected = before[parameter] - 0.1 * (task[parameter] + pull)
            torch.testing.assert_close(dict(model.named_parameters())[parameter].detach(), expected, rtol=1e-10, atol=0)


def test_the_penalty_is_the_quadratic_form_and_its_gradient_is_the_pull():
    model = network()
    guard = guarded(model)
    moved(model)
    parts = [
        joined(guard, model, name) @ dense(guard, name) @ joined(guard, model, name) for name in guard.held.matrices
    ]
    value = guard.penalty()
    torch.testing.assert_close(value, STRENGTH * sum(parts), rtol=1e-10, atol=0)
    found = dict(zip(dict(model.named_parameters()), torch.autograd.grad(value, list(model.parameters())), strict=True))
    for name, matrix in guard.held.matrices.items():
        pull = (2 * STRENGTH * dense(guard, name) @ joined(guard, model, name)).view(len(matrix.g), len(matrix.a))
        for parameter, expected in matrix._cut(pull).items():
            torch.testing.assert_close(found[parameter], expected, rtol=1e-10, atol=1e-12)


def test_importance_is_the_diagonal_for_reading():
    guard = guarded(network())
    for name, matrix in guard.held.matrices.items():
        read = torch.cat([guard.importance[n].reshape(len(matrix.g), -1) for n in matrix.block.parameters], 1)
        torch.testing.assert_close(read.flatten(), dense(guard, name).diagonal())


def test_shrink_and_solve_are_those_of_the_dense_matrix():
    model = network()
    guard = guarded(model)
    moved(model)
    for name, matrix in guard.held.matrices.items():
        d, q = joined(guard, model, name), dense(guard, name)
        one = torch.eye(len(q), dtype=q.dtype)
        given = matrix._cut(d.view(len(matrix.g), len(matrix.a)))
        shrunk = matrix._joined(matrix.shrink(given, 3.0)).flatten()
        torch.testing.assert_close(shrunk, torch.linalg.solve(one + 3.0 * q, d), rtol=1e-8, atol=1e-10)
        solved = matrix._joined(matrix.solve(given, 0.1)).flatten()
        torch.testing.assert_close(solved, torch.linalg.solve(q + 0.1 * one, d), rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(matrix.largest_eigenvalue(), torch.linalg.eigvalsh(q)[-1])


def test_a_second_task_is_added_with_its_trace():
    model = network()
    guard = guarded(model, decay=0.5)
    first = {name: matrix.trace() for name, matrix in guard.held.matrices.items()}
    moved(model)
    alone = guarded(copy.deepcopy(model))
    guard.consolidate(data())
    for name, matrix in guard.held.matrices.items():
        torch.testing.assert_close(matrix.trace(), alone.held.matrices[name].trace() + 0.5 * first[name])
        torch.testing.assert_close(guard.anchor[matrix.block.parameters[0]], model.state_dict()[f"{name}.weight"])


def test_its_state_is_saved_loaded_and_resumed(tmp_path):
    model = network()
    guard = guarded(model)
    guard.save(tmp_path / "state")
    moved(model)
    other = anchorhold.Guard(copy.deepcopy(model), anchorhold.Fisher(), form="toy-kronecker")
    other.load(tmp_path / "state")
    torch.testing.assert_close(other.penalty(), guard.penalty())
    again = anchorhold.Guard(copy.deepcopy(model), anchorhold.Fisher(), form=ToyKronecker())
    again.load_state_dict(guard.state_dict())
    torch.testing.assert_close(again.penalty(), guard.penalty())


def test_a_state_of_another_form_or_network_is_refused(tmp_path):
    guarded(network()).save(tmp_path / "state")
    with pytest.raises(StateError, match="form="):
        anchorhold.Guard(network(), anchorhold.Fisher()).load(tmp_path / "state")
    with pytest.raises(StateError, match=r"form=.*damping"):
        anchorhold.Guard(network(), anchorhold.Fisher(), form=ToyKronecker(damping=1.0)).load(tmp_path / "state")
    other = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3, bias=False)).double()
    with pytest.raises(StateError, match="another model"):
        anchorhold.Guard(other, anchorhold.Fisher(), form="toy-kronecker").load(tmp_path / "state")


def test_forgetting_a_part_lets_go_of_the_block():
    guard = guarded(network())
    with pytest.warns(
        anchorhold.AnchorholdWarning, match=r"in one matrix with '0\.weight', so that nothing holds those"
    ):
        guard.forget("0.bias")
    assert guard.held.matrices.keys() == {"2"} and "0.weight" in guard.anchor


def test_what_it_cannot_measure_leaves_everything_as_it_was():
    model = network()
    guard = guarded(model)
    before = guard.penalty()
    with pytest.raises(ModelError, match="along a sequence"):
        guard.consolidate([torch.randn(2, 3, 4, dtype=torch.float64)])
    assert guard.tasks == 1 and torch.equal(guard.penalty(), before)


@pytest.mark.parametrize("measure", ["SI", "SOS", "L2"])
def test_a_measure_of_single_weights_has_none(measure):
    with pytest.raises(ConfigurationError, match=f"{measure} has no importance in the form.*EWC.*'diagonal'"):
        anchorhold.Guard(network(), measure, form="toy-kronecker")


def test_a_form_that_nobody_knows_is_told_with_those_that_are_near():
    with pytest.raises(ConfigurationError, match=r"No form is called 'Diagonale'\. Did you mean 'diagonal'"):
        anchorhold.Guard(network(), "EWC", form="Diagonale")
    with pytest.raises(ConfigurationError, match="with its parentheses"):
        anchorhold.Guard(network(), "EWC", form=ToyKronecker)


def test_a_watching_measure_sees_the_tasks_gradient_alone():
    def path(strength):
        model = network()
        guard = anchorhold.Guard(
            model, anchorhold.Fisher(), strength=strength, form="toy-kronecker", watch=["SI", "SOS"]
        )
        guard.consolidate(data())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)  # so that both see the same weights
        guard.attach(optimizer)
        with torch.no_grad():
            model[0].weight.add_(0.1)
        for x, y in data(2):
            F.cross_entropy(model(x), y).backward()
            grads = [p.grad.clone() for p in model.parameters()]
            optimizer.step()
            assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), grads, strict=True))
        return guard.gradients.path.running["SOS"]["second_moment"]

    without, held = path(0.0), path(50.0)
    assert all(torch.equal(without[name], held[name]) for name in without)
