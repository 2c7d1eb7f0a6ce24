"""The methods in one file of plain torch, against their own formulas and against the library, bit for bit."""

import ast
import runpy
import subprocess
import sys

import pytest
import torch
from torch.nn.functional import cross_entropy

import anchorhold
from tests.docs.pages import DOCS

pytestmark = pytest.mark.usefixtures("one_thread")
FILES = {"ewc_in_60_lines.py": ("diagonal", 60), "rotated_ewc_in_120_lines.py": ("rotated", 120)}


def by_the_library(scope, form, c):
    """Return the same network, trained on the same tasks with a guard."""
    network = scope["make_network"]()
    guard = anchorhold.Guard(network, "EWC", strength=c, form=form, from_scratch=True)
    for x, y in scope["make_tasks"]():
        optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
        guard.detach()
        guard.attach(optimizer)
        for _ in range(50):
            optimizer.zero_grad()
            cross_entropy(network(x), y).backward()
            optimizer.step()
        guard.consolidate([x])
    return network


@pytest.mark.parametrize("c", [0.5, 20.0])
@pytest.mark.parametrize("name", FILES)
def test_the_weights_are_those_of_the_library_to_the_last_bit(name, c):
    scope, (form, _) = runpy.run_path(str(DOCS / name)), FILES[name]
    mine, free = scope["main"](c), scope["main"](0.0)
    library = by_the_library(scope, form, c)
    for parameter, other, unheld in zip(mine.parameters(), library.parameters(), free.parameters(), strict=True):
        assert torch.equal(parameter, other)
        assert not torch.equal(parameter, unheld)


def gradients(network, x):
    """Yield p(y) and the gradient of log p(y), for every label of every sample."""
    for sample in x:
        log_p = network(sample).log_softmax(-1)
        for each in log_p:
            yield float(each.detach().exp()), torch.autograd.grad(each, list(network.parameters()), retain_graph=True)


def test_ewcs_importance_is_the_fisher_informations_diagonal():
    scope = runpy.run_path(str(DOCS / "ewc_in_60_lines.py"))
    network, (x, _) = scope["make_network"](), scope["make_tasks"]()[0]
    expected = [torch.zeros_like(p) for p in network.parameters()]
    for probability, gradient in gradients(network, x):
        for total, own in zip(expected, gradient, strict=True):
            total.add_(probability * own.square() / len(x))
    for found, total in zip(scope["fisher"](network, x), expected, strict=True):
        torch.testing.assert_close(found, total, rtol=1e-12, atol=1e-15)


def test_rotated_ewcs_importance_is_the_fisher_informations_diagonal_along_the_eigenvectors():
    scope = runpy.run_path(str(DOCS / "rotated_ewc_in_120_lines.py"))
    network, (x, _) = scope["make_network"](), scope["make_tasks"]()[0]
    for number, (a, delta) in enumerate(scope["inputs_and_deltas"](network, x)):
        found = scope["measured"](a, delta, None)
        expected = torch.zeros_like(found.s)
        for probability, gradient in gradients(network, x):
            weight, bias = gradient[2 * number : 2 * number + 2]
            turned = found.u_g.T @ torch.cat([weight, bias.unsqueeze(1)], 1) @ found.u_a
            expected += probability * turned.square() / len(x)
        expected += scope["DAMPING"] * expected.mean()
        torch.testing.assert_close(found.s, expected, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("name", FILES)
def test_they_are_as_short_as_they_say_and_need_torch_alone(name):
    tree = ast.parse((DOCS / name).read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported <= {"torch", "torch.nn.functional", "typing"}
    for node in ast.walk(tree):  # docstrings are no lines of code
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    lines = [line for line in ast.unparse(tree).splitlines() if line.strip()]
    assert len(lines) <= FILES[name][1]


@pytest.mark.parametrize("name", FILES)
def test_they_run_and_show_what_the_hold_is_worth(name):
    ran = subprocess.run([sys.executable, DOCS / name], capture_output=True, text=True, check=True)
    free, held = ran.stdout.splitlines()
    assert free.startswith("c = 0: 75% of the first") and held.startswith("c = 20: ")
    assert int(held.split()[3].rstrip("%")) > 85
