"""Whether what a run is given fits its scenario: the network, a tolerance, and the samples that it is judged by."""

import torch
from torch import Tensor, nn

from anchorhold.errors import ConfigurationError
from anchorhold.retention import Tolerance
from anchorhold_lab.networks import MultiHead
from anchorhold_lab.scenarios import Scenario


def check_network(model: MultiHead, scenario: Scenario) -> None:
    """Refuse a network without as many heads and classes as the scenario has."""
    if not isinstance(model, MultiHead):
        raise ConfigurationError(
            f"The network is a {type(model).__name__}; expected a MultiHead. Wrap it: MultiHead(body, features, "
            f"classes={scenario.classes}, heads={scenario.heads}), where body turns inputs into so many features."
        )
    if len(model.heads) < scenario.heads:
        raise ConfigurationError(
            f"A network with {len(model.heads)} heads for a scenario that needs {scenario.heads}; expected "
            f"MultiHead(..., heads={scenario.heads})."
        )
    classes = min((head.out_features for head in model.heads if isinstance(head, nn.Linear)), default=scenario.classes)
    if classes < scenario.classes:
        raise ConfigurationError(
            f"A network with heads of {classes} classes for a scenario of {scenario.classes}; expected "
            f"MultiHead(..., classes={scenario.classes})."
        )


def check_judge(judge_by: str, scenario: Scenario) -> None:
    """Refuse to judge by samples that the tasks do not have."""
    if judge_by not in ("test", "validation") or any(getattr(t, f"stored_{judge_by}") is None for t in scenario.tasks):
        raise ConfigurationError(
            f"judge_by={judge_by!r} for a scenario whose tasks have no such samples; expected 'test', or "
            "'validation' for a scenario that was made with a validation share."
        )


def check_set_aside(tolerance: Tolerance, scenario: Scenario) -> None:
    """Refuse a tolerance where no samples are set aside to see by what is lost."""
    if not scenario.keeps:
        raise ConfigurationError(
            f"tolerance={tolerance.nats:g} for a scenario that has set no samples aside to measure it on; expected "
            "one that has, set_aside(scenario, 300, seed=0)."
        )


def unusual_type(inputs: Tensor) -> str:
    """Return what to do about inputs that are not of the type that networks usually take."""
    if inputs.dtype == torch.float32:
        return ""
    return f" and type {inputs.dtype} (anchorhold-lab's own networks take torch.float32: x.float() in the scenario)"
