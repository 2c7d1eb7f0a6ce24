"""Functions that torch's compiler leaves alone: by torch's own way for optimizers, or without it by the public one."""

import pytest
import torch

from anchorhold.guard.stepping.training_calls import out_of_graphs


@pytest.fixture(params=["private", "public"])
def way(request, monkeypatch):
    """Be with a torch that has the private way, which is asked for first, or with one that has it no longer."""
    if request.param == "public":
        monkeypatch.delattr(torch, "_disable_dynamo")
    torch._dynamo.reset()
    yield request.param
    torch._dynamo.reset()


def test_a_function_is_called_as_it_is_by_what_is_compiled(way):
    def told(x):
        """Say how it is called."""
        seen.append(torch.compiler.is_compiling())
        return x + 1

    seen, graphs = [], []

    def backend(graph, inputs):
        graphs.append(sum(node.op == "call_function" for node in graph.graph.nodes))
        return graph.forward

    kept = out_of_graphs(told)
    assert kept.__doc__ == told.__doc__ and kept.__name__ == "told"
    compiled = torch.compile(lambda x: kept(x * 2) * 3, backend=backend)
    assert compiled(torch.ones(2)).tolist() == [9.0, 9.0]
    assert seen == [False] and graphs == [1, 1]  # one before it and one after it


def test_a_method_is_still_one(way):
    class Noting:
        def __init__(self):
            self.noted = []

        @out_of_graphs
        def note(self, x):
            self.noted.append(x)

    one, other = Noting(), Noting()
    one.note(1)
    assert one.noted == [1] and not other.noted
