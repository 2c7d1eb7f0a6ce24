"""The same networks, run in other ways: compiled, scripted, checkpointed, quantised, in 16 bits."""

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from benchmarks.families.family import Case, Section
from benchmarks.families.models.others import two_layers
from benchmarks.families.models.vision import labels

execution = Section[Case]("Ways of running a model")


def inputs() -> Tensor:
    return torch.randn(5, 6)


@execution.add("torch.compile")
def compiled() -> Case:
    """Whole-graph, through the eager backend: what the tracer makes of the engine's own calls."""
    model = torch.compile(two_layers(), backend="aot_eager")
    assert isinstance(model, nn.Module)
    return Case(model, inputs(), labels())


@execution.add("torch.jit.script")
def scripted() -> Case:
    """A scripted model."""
    return Case(torch.jit.script(two_layers().double()), inputs(), labels())


@execution.add("torch.jit.trace")
def traced() -> Case:
    """A traced model."""
    return Case(torch.jit.trace(two_layers().double(), inputs().double()), inputs(), labels())


@execution.add("torch.fx")
def symbolic() -> Case:
    """A model rewritten by symbolic tracing."""
    return Case(torch.fx.symbolic_trace(two_layers()), inputs(), labels())


@execution.add("torch.export")
def exported() -> Case:
    """An exported program, turned into a module again."""
    size = torch.export.Dim("n", min=2)
    program = torch.export.export(two_layers().double(), (inputs().double(),), dynamic_shapes=({0: size},))
    return Case(program.module(), inputs(), labels(), moved=False)


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first, self.middle, self.head, self.reentrant = nn.Linear(6, 7), two_layers(6), nn.Linear(6, 3), reentrant
        self.middle[0] = nn.Linear(7, 7)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.head(checkpoint(self.middle, self.first(x), use_reentrant=self.reentrant))
        return outputs


@execution.add("checkpointed")
def checkpointed() -> Case:
    """torch.utils.checkpoint without reentrance."""
    return Case(Checkpointed(reentrant=False), inputs(), labels())


@execution.add("checkpointed, reentrant")
def reentrant() -> Case:
    """torch.utils.checkpoint, the old way, which autograd.grad cannot follow."""
    return Case(Checkpointed(reentrant=True), inputs(), labels(), formula=_without_checkpoint)


def _without_checkpoint(model: nn.Module, x: Tensor) -> Tensor:
    assert isinstance(model, Checkpointed)
    value: Tensor = model.head(model.middle(model.first(x)))
    return value


@execution.add("bfloat16")
def bfloat16() -> Case:
    """The model in 16 bits, beside the same weights in float64; what remains is rounding."""
    model = two_layers().to(torch.bfloat16)

    def exactly(model: nn.Module, x: Tensor) -> Tensor:
        value: Tensor = torch.func.functional_call(
            model, {name: p.double() for name, p in model.named_parameters()}, x.double()
        )
        return value

    return Case(model, inputs().to(torch.bfloat16), labels(), formula=exactly, dtype=None, moved=False, tolerance=3e-2)


@execution.add("autocast inside forward")
def autocast() -> Case:
    """Single precision weights, products in bfloat16."""

    class Cast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = two_layers()

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                outputs: Tensor = self.net(x).float()
                return outputs

    def in_single(model: nn.Module, x: Tensor) -> Tensor:
        assert isinstance(model, Cast)
        outputs: Tensor = model.net(x)
        return outputs

    return Case(Cast(), inputs(), labels(), formula=in_single, dtype=None, moved=False, tolerance=5e-2)


class FakeQuantised(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        step = self.weight.detach().abs().amax() / 7
        rounded = self.weight + ((self.weight / step).round() * step - self.weight).detach()
        return F.linear(x, rounded, self.bias)


@execution.add("quantisation-aware, straight through")
def fake_quantised() -> Case:
    """Weights are rounded in forward, and gradients pass as if they were not."""
    return Case(nn.Sequential(FakeQuantised(6, 7), nn.ReLU(), FakeQuantised(7, 3)), inputs(), labels())


@execution.add("torch.ao, fake_quantize")
def fake_quantise_op() -> Case:
    """torch.fake_quantize_per_tensor_affine on activations and weights."""

    class Faked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.head = nn.Linear(6, 7), nn.Linear(7, 3)

        def forward(self, x: Tensor) -> Tensor:
            weight = torch.fake_quantize_per_tensor_affine(self.first.weight, 0.05, 0, -128, 127)
            h = F.linear(x, weight, self.first.bias).relu()
            outputs: Tensor = self.head(torch.fake_quantize_per_tensor_affine(h, 0.1, 0, 0, 255))
            return outputs

    return Case(Faked().float(), inputs(), labels(), dtype=None, tolerance=1e-5)


@execution.add("int8 weights")
def int8() -> Case:
    """A frozen layer as integers and a scale, a trained one in floating point."""

    class Int8(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randint(-127, 127, (7, 6), dtype=torch.int8), requires_grad=False)
            self.scale, self.head = nn.Parameter(torch.full((7, 1), 0.01)), nn.Linear(7, 3)

        def forward(self, x: Tensor) -> Tensor:
            outputs: Tensor = self.head(F.linear(x, self.weight.to(x.dtype) * self.scale).relu())
            return outputs

    return Case(Int8(), inputs(), labels())


@execution.add("dynamic quantisation")
def dynamic() -> Case:
    """torch.ao's: activations are scaled by the largest of the whole batch, so that samples depend on each other."""
    model = nn.Sequential(nn.Embedding(6, 4), nn.Flatten(), nn.LayerNorm(12), nn.Linear(12, 8), nn.Linear(8, 3))
    quantised = torch.ao.quantization.quantize_dynamic(model, {"3"}, dtype=torch.qint8)
    return Case(quantised, torch.randint(6, (5, 3)), labels(), dtype=None, mixes=True)


@execution.add("DataParallel wrapper")
def data_parallel() -> Case:
    """nn.DataParallel without a GPU, which calls the module as it is."""
    return Case(nn.DataParallel(two_layers()), inputs(), labels())


@execution.add("averaged model")
def averaged() -> Case:
    """torch.optim.swa_utils.AveragedModel."""
    return Case(torch.optim.swa_utils.AveragedModel(two_layers()), inputs(), labels())


@execution.add("ensemble by vmap")
def ensemble() -> Case:
    """Weights of three networks stacked, called by torch.func.vmap, averaged."""

    class Ensemble(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            members = [two_layers() for _ in range(3)]
            stacked, _ = torch.func.stack_module_state(members)
            self.stacked = nn.ParameterDict({k.replace(".", "_"): nn.Parameter(v.detach()) for k, v in stacked.items()})
            self.shape = [copy.deepcopy(members[0]).to("meta")]

        def forward(self, x: Tensor) -> Tensor:
            def one(values: dict[str, Tensor]) -> Tensor:
                value: Tensor = torch.func.functional_call(
                    self.shape[0], {k.replace("_", "."): v for k, v in values.items()}, x
                )
                return value

            return torch.vmap(one)(dict(self.stacked)).mean(0)

    return Case(Ensemble(), inputs(), labels())


@execution.add("hooks that change outputs")
def hooks() -> Case:
    """Forward hooks and pre-hooks that scale what goes through."""
    model = two_layers()
    model[0].register_forward_pre_hook(lambda _, args: (2 * args[0],))
    model[2].register_forward_hook(lambda _, args, out: out + args[0][:, :3])
    return Case(model, inputs(), labels())


@execution.add("inference_mode in a part")
def inference_part() -> Case:
    """A frozen encoder under no_grad, as people write it."""

    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.head = nn.Linear(6, 7), nn.Linear(7, 3)

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                h = self.encoder(x).relu()
            outputs: Tensor = self.head(h)
            return outputs

    return Case(Part(), inputs(), labels())


@execution.add("in-place changes of a weight")
def in_place() -> Case:
    """A layer whose weight is projected in forward under no_grad, as max-norm constraints are."""

    class Projected(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                self.weight.renorm_(2, 0, 0.3)
            return super().forward(x)

    return Case(nn.Sequential(Projected(6, 7), nn.ReLU(), nn.Linear(7, 3)), inputs(), labels())
