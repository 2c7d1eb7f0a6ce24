"""Warn of a form whose pull takes longer than the task's own step, and name what takes less."""

from anchorhold.forms import Diagonal, Form, Kronecker, Rotated
from anchorhold.guard.costs import LEAST_PULL, Costs, costs_of, pull_products
from anchorhold.guard.monitor import Monitor, is_capturing

MOST_STEPS = 2.0
"""How many unprotected steps a held one may be expected to take before a user is told."""

LEAST_ROWS = 2048
"""Rows that a training batch is taken to have at least: importance may be measured in far smaller ones, which say
nothing of training, and of larger ones a held step takes less."""
SELDOM = 4
"""Steps from one pull to the next that is advised. It lost nothing on permuted images, and 2 points on Split CIFAR."""


class PullCost(Monitor):
    """Compare the products of the pull with those of the task's step, before the first step of a task that is held."""

    name = "pull-cost"

    def begin_task(self) -> None:
        """Warn once if a held step is expected to take more than twice as long as an unprotected one."""
        core = self.core
        if core.state.driving.form.elementwise or not core.state.is_anchored or not core.state.asks_to_hold:
            return
        if is_capturing():
            return
        costs = costs_of(core)
        pull = costs.multiplications
        if costs.step is None or pull < LEAST_PULL:
            return
        measured = max(core.runtime.rows.values())
        rows = max(measured, LEAST_ROWS)
        step = costs.step * rows / measured
        if 1 + pull / step <= MOST_STEPS:
            return
        advice = [*self._cheaper(costs, step), f"batches of {rows * pull / step:,.0f} rows ({MOST_STEPS:g} times)"]
        core.runtime.warned.once(
            "pull cost",
            _SLOW.format(
                ratio=1 + pull / step, form=costs.form, pull=pull, step=step, rows=rows, advice=", or ".join(advice)
            ),
        )

    def _cheaper(self, costs: Costs, step: float) -> list[str]:
        """Return the forms whose pull takes less, each with how many unprotected steps a held one takes with it."""
        core, found = self.core, []
        forms: list[Form] = [form for form in (Kronecker(), Diagonal()) if form.supports(core.state.driving.measure)]
        for form in forms:
            pull = pull_products(core, form)
            if pull < 0.9 * costs.multiplications:
                found.append(f"form={form.name!r} ({1 + pull / step:.3g} times)")
        if core.state.implicit.value and core.state.pull_every.value == 1:
            once = 1 + costs.multiplications / SELDOM / step
            found.append(f"options=GuardOptions(pull_every={SELDOM}) ({once:.3g} times, to be compared with 1)")
        on_gpu = any(parameter.device.type == "cuda" for parameter in core.runtime.parameters.values())
        form = core.state.driving.form
        if on_gpu and isinstance(form, Rotated) and form.precision == "float32":
            found.append("products in TF32, form=Rotated(precision='tf32')")
        return found


_SLOW = (
    "A held step is expected to take {ratio:.3g} times as long as an unprotected one at {rows:,.0f} rows a batch "
    "(samples times positions), and more at fewer. In the form {form!r} the hold's pull takes {pull:.2g} "
    "multiplications, however large the batch is, and the task's own step {step:.2g}. Less takes {advice}. "
    "guard.cost(rows=).ratio says so for other batches; docs/guides/forms.md has what was measured."
)
