"""Q of layers whose parameters are spread over processes: each keeps a part of it, and it is whole for a moment.

A form of matrices needs a whole layer to be applied: Q and D are gathered block by block, Q(D) is found on every
process alike, and each keeps its own rows of it. Between steps the memory of Q shrinks with the number of processes.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from torch import Tensor, nn

from anchorhold.errors import ConfigurationError
from anchorhold.forms import DiagonalMatrix, Form, Matrix
from anchorhold.forms.base import Displacement
from anchorhold.tensors.names import named_parameters
from anchorhold.tensors.sharding import is_sharded, like_parameter, whole, whole_together

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

FORMS = ("diagonal", "rotated", "kronecker")
"""The forms that models can be sharded with, by name."""


class ShardedMatrix(Matrix):
    """Q of one block, in parts.

    What is often asked of it is found while it is whole, so that no process waits for others to be told: its diagonal,
    itself in parts, its trace and its largest eigenvalue.

    Args:
        matrix: the same with each of its tensors spread over processes.
        diagonal: that of Q, spread as the parameters are.
        trace: the sum of its eigenvalues.
        largest: the largest of them.
        finite: whether it is made of numbers alone; a process that saw that of its own part would stop by itself.
    """

    def __init__(
        self, matrix: Matrix, diagonal: Mapping[str, Tensor], trace: Tensor, largest: Tensor, *, finite: bool
    ) -> None:
        self.block = matrix.block
        self._finite = finite
        self._parts = matrix
        self._diagonal = dict(diagonal)
        self._trace = trace
        self._largest = largest

    @classmethod
    def of(cls, matrix: Matrix, parameters: Mapping[str, Tensor]) -> "ShardedMatrix":
        """Return a whole Q, which all processes have, in parts."""
        like = parameters[matrix.block.parameters[0]]
        assert is_sharded(like)
        mesh = like.device_mesh
        diagonal = {name: like_parameter(omega, parameters[name]) for name, omega in matrix.diagonal().items()}
        numbers = matrix.trace(), matrix.largest_eigenvalue()
        return cls(matrix.map(lambda t: _in_rows(t, mesh)), diagonal, *numbers, finite=matrix.is_finite)

    @property
    def description(self) -> str:
        return self._parts.description

    def gathered(self) -> Matrix:
        """Return all of Q. Every process has to ask for it at the same time."""
        return self._gathered({})[0]

    def _gathered(self, d: Displacement) -> tuple[Matrix, dict[str, Tensor]]:
        """Return all of Q and of D, in one go."""
        own = list(self._parts.state().values())
        # Together, since each exchange by itself waits for all processes.
        every = whole_together([*own, *d.values()])
        # By identity: map() is given the very tensors that state() returned.
        known = dict(zip(map(id, own), every, strict=False))
        return self._parts.map(lambda part: known[id(part)]), dict(zip(d, every[len(own) :], strict=True))

    def apply(self, d: Displacement) -> dict[str, Tensor]:
        """Return Q(D), spread as D is."""
        return self._of_whole(lambda q, all_of_d: q.apply(all_of_d), d)

    def value(self, d: Displacement) -> Tensor:
        """Return ⟨D, Q(D)⟩, the same on all processes."""
        q, all_of_d = self._gathered(d)
        return q.value(all_of_d)

    def shrink(self, d: Displacement, strength: float) -> dict[str, Tensor]:
        """Return (1 + cQ)⁻¹D, spread as D is."""
        return self._of_whole(lambda q, all_of_d: q.shrink(all_of_d, strength), d)

    def pull(self, d: Displacement, strength: float) -> dict[str, Tensor]:
        return self._of_whole(lambda q, all_of_d: q.pull(all_of_d, strength), d)

    def solve(self, b: Displacement, damping: float = 0.0) -> dict[str, Tensor]:
        """Return (Q + damping)⁻¹B, spread as B is."""
        return self._of_whole(lambda q, all_of_b: q.solve(all_of_b, damping), b)

    def _of_whole(
        self, work: Callable[[Matrix, dict[str, Tensor]], dict[str, Tensor]], d: Displacement
    ) -> dict[str, Tensor]:
        found = work(*self._gathered(d))
        return {name: like_parameter(each, d[name]) for name, each in found.items()}

    def add(self, earlier: Matrix, decay: float) -> "ShardedMatrix":
        # The diagonal is spread as the parameters are, which of() wants to know alone.
        return self.of(self.gathered().add(unsharded(earlier), decay), self._diagonal)

    def scale(self, factor: float) -> "ShardedMatrix":
        return self.of(self.gathered().scale(factor), self._diagonal)

    def diagonal(self) -> dict[str, Tensor]:
        """Return the diagonal, spread as the parameters are."""
        return dict(self._diagonal)

    def trace(self) -> Tensor:
        return self._trace

    def largest_eigenvalue(self) -> Tensor:
        return self._largest

    def state(self) -> dict[str, Tensor]:
        """Return what Q is made of, each spread over the processes."""
        return self._parts.state()

    def map(self, change: Callable[[Tensor], Tensor]) -> "ShardedMatrix":
        diagonal = {name: change(omega) for name, omega in self._diagonal.items()}
        # Eigenvalues stay: what is done by map() copies, moves and rounds.
        return ShardedMatrix(self._parts.map(change), diagonal, self._trace, self._largest, finite=self._finite)

    @property
    def is_finite(self) -> bool:
        """Whether all of it is made of numbers alone, the same on all processes."""
        return self._finite


def unsharded(matrix: Matrix) -> Matrix:
    """Return all of Q. For one in parts, every process has to ask for it at the same time."""
    return matrix.gathered() if isinstance(matrix, ShardedMatrix) else matrix


def as_parameters_are(matrix: Matrix, parameters: Mapping[str, Tensor]) -> Matrix:
    """Return a Q that all processes have, in parts if its parameters are; one in parts stays so."""
    like = parameters[matrix.block.parameters[0]]
    if not is_sharded(like):
        return unsharded(matrix).map(whole)
    if isinstance(matrix, ShardedMatrix):
        return matrix
    if isinstance(matrix, DiagonalMatrix):
        # A diagonal is applied element by element, and never needs to be whole.
        return matrix.map(lambda omega: like_parameter(omega, like))
    return ShardedMatrix.of(matrix, parameters)


def refuse_unless_in_parts(form: Form, model: nn.Module) -> None:
    """Refuse a form of matrices that cannot be kept in parts, of a model's parameters that are."""
    first = "" if form.elementwise else next((name for name, p in named_parameters(model) if is_sharded(p)), "")
    if not first:
        return
    if form.name not in FORMS:
        raise ConfigurationError(
            f"form={form.name!r} with parameters that are spread over processes, such as {first!r}: its matrix cannot "
            f"be kept in parts. Use DDP, or one of the forms {', '.join(map(repr, FORMS))}."
        )
    if form.storage_dtype is not None or form.has_shared_tensors:
        raise ConfigurationError(
            f"form={form} with parameters that are spread over processes, such as {first!r}: bits=16 and "
            "share_inputs=True are for models that every process has whole. Leave both out."
        )


def _in_rows(tensor: Tensor, mesh: "DeviceMesh") -> Tensor:
    """Return a tensor that all processes have, each keeping some of its rows; copies of a model keep the same."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor  # noqa: PLC0415 (not in every build)

    # A scalar has no rows.
    last = Shard(0) if tensor.ndim else Replicate()
    # Every process has all of it and keeps its own rows: nothing is sent.
    return distribute_tensor(tensor, mesh, [*[Replicate()] * (mesh.ndim - 1), last], src_data_rank=None)
