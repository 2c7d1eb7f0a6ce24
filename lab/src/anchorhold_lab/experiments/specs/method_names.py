"""What protects a run, in words."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anchorhold_lab.experiments.specs.spec import Spec


def method_name(spec: "Spec") -> str:
    """Return what protects a run: its measure in its form, the holds beside it, or that it is a bound."""
    if spec.settings.trains != "sequentially":
        return f"{spec.measure} {spec.settings.trains}"
    measure = spec.measure if spec.form == "diagonal" else f"{spec.form} {spec.measure}"
    measure = f"implicit {measure}" if spec.implicit else measure
    measure = f"compressed {measure}" if spec.settings.compress else measure
    return " + ".join([measure, *spec.holds])
