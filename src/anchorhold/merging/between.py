"""Weights between those of several models: one call, and what serves many shares."""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from anchorhold.errors import ConfigurationError, NotFiniteError, warn
from anchorhold.forms import DiagonalMatrix
from anchorhold.merging import tensor_files
from anchorhold.merging.common_names import CommonNames
from anchorhold.merging.given_forms import GivenForm, ModelForm, given_forms, groups, traces
from anchorhold.merging.given_models import Adapted, GivenModel, InFiles, InMemory, Model, given_model
from anchorhold.merging.lora_files import lone_factors, lone_factors_warning
from anchorhold.merging.normal_equations import Pull, solved
from anchorhold.merging.shares import Share, all_shares
from anchorhold.merging.tensor_files import Described
from anchorhold.settings import choice, number
from anchorhold.tensors.pieces import LARGE_PIECE, PIECE
from anchorhold.tensors.sharding import is_finite
from anchorhold.tensors.storage import widest_dtype

Normalise = Literal["network", "layers", "none"]
"""Over what the mean importance of each model is made 1: all that its form is of, each layer by itself, or nothing."""

DAMPING = 0.1
"""The share of the mean importance that every direction has beside what was measured; results/merging.md compares."""

Emit = Callable[[str, Tensor, int], None]
"""Takes a piece of a merged tensor: its name, the piece, and the element that it begins with."""


def merge(
    before: Model,
    after: "Model | Sequence[Model]",
    share: Share = 0.5,
    *,
    by: "GivenForm | Sequence[GivenForm]" = None,
    normalise: Normalise = "network",
    damping: float = DAMPING,
    dtype: torch.dtype | None = None,
    out: str | os.PathLike[str] | None = None,
) -> "dict[str, Any] | Path":
    r"""Return weights between those of a model before training and after it, or between any models of one network.

    >>> model.load_state_dict(anchorhold.merge(before, model, share=0.7))

    The result is :math:`\mathrm{argmin}_\theta \sum_k c_k\langle\theta - \theta_k, Q_k(\theta - \theta_k)\rangle`:
    without forms the average (WiSE-FT, Wortsman et al. 2022, arXiv 2109.01903), with diagonal ones Fisher merging
    (Matena and Raffel 2022, arXiv 2111.09832), with ``Kronecker(outputs="identity", damping=0.0)`` RegMean (Jin et al.
    2023, arXiv 2212.09849), and with any other form the same in its coordinates. Neither model is changed. Models
    have to be near each other, such as one that was fine-tuned from the other for a short while: the average of two
    that lie far apart is good for neither.

    Args:
        before: a module, a state dict, the path of a safetensors file, or of a folder in Hugging Face's layout.
        after: another model of the same network, or several of them. A module with adapters is taken as the weights
            that it stands for, and so is the folder of a LoRA adapter of ``before``.
        share: of ``after``: 0 is ``before`` alone, 1 ``after`` alone; of several models one for each, and ``before``
            has the rest.
        by: what each model weighs its weights with, one for each: a guard that was consolidated on its task, a file
            that one was saved to, ``guard.held.matrices``, or importances by parameter. ``None`` weighs all alike. One
            by itself is that of ``before``, and then the step away from it is shrunk by :math:`(1 + c\lambda)^{-1}`
            along each direction.
        normalise: over what each form's mean importance is made 1, so that two are comparable: ``"network"``, each of
            the ``"layers"``, or nothing, ``"none"``.
        damping: a share of the mean importance, by which every direction is pulled to the average beside what was
            measured: where no form weighs anything, the result is the average.
        dtype: of the result; by default that of the models, and the more precise one where they differ.
        out: where to write the result: a safetensors file, or a folder if ``after`` is one. Tensors are then read,
            merged and written one after another, and nothing is there before all are written.

    Returns:
        A state dict, or the path of what was written.
    """
    return Merging(before, after, by=by, normalise=normalise, damping=damping, dtype=dtype).at(share, out=out)


class Merging:
    """Models that have been found to fit each other, and to fit their forms; merged at any shares.

    >>> between = Merging(before, after, by=(old_guard, new_guard))
    >>> states = {share: between.at(share) for share in (0.3, 0.5, 0.7)}

    Args: as of :func:`anchorhold.merge`.
    """

    def __init__(
        self,
        before: Model,
        after: "Model | Sequence[Model]",
        *,
        by: "GivenForm | Sequence[GivenForm]" = None,
        normalise: Normalise = "network",
        damping: float = DAMPING,
        dtype: torch.dtype | None = None,
    ) -> None:
        choice("normalise", normalise, get_args(Normalise))
        self._normalise = normalise
        self._damping = float(number("damping", damping, "a number of at least 0", lambda value: value >= 0))
        if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise ConfigurationError(f"dtype={dtype!r}: expected a floating-point type, such as torch.bfloat16.")
        self._dtype = dtype
        several = isinstance(after, list | tuple)
        first = given_model("before", before)
        later: list[Model] = list(after) if several else [after]  # type: ignore[arg-type,list-item]
        if not later:
            raise ConfigurationError("after is empty; expected at least one model to merge with.")
        labels = [f"after[{k}]" if several else "after" for k in range(len(later))]
        self.models: list[GivenModel] = [
            first,
            *(given_model(label, model, first) for label, model in zip(labels, later, strict=True)),
        ]
        self.forms = given_forms(by, len(self.models))
        held = {name for form in self.forms if form for members in form.blocks.values() for name in members}
        self._common = CommonNames(self.models, held)
        self._groups = self._checked_groups()
        self._traces = [None if form is None else traces(form) for form in self.forms]
        for form, own in zip(self.forms, self._traces, strict=True):
            if own is not None and not sum(own.values()) > 0:
                raise ConfigurationError(
                    f"{form.label if form else ''} weighs nothing: its importance is 0 everywhere, and a model without "
                    "any is not merged. Measure it on data that the model knows, or give None."
                )
        for model in self.models[1:]:
            _refuse_the_same_memory(first, model)
        self._warned: set[str] = set()
        self._tell_types()
        if alone := lone_factors(self._common.names, [partial(self._read, model) for model in self.models]):
            warn(lone_factors_warning(alone))

    @property
    def description(self) -> str:
        """By what models are merged, in a few words."""
        if not any(self.forms):
            return "the average"
        return ", ".join("no form" if form is None else form.description for form in self.forms)

    # What is given

    def _checked_groups(self) -> list[list[str]]:
        """Return the parameters that are merged together by forms, or refuse forms that do not belong to the models."""
        present = [form for form in self.forms if form is not None]
        floating = {name for name in self._common.names if self._is_number(name)}
        for form, model in zip(self.forms, self.models, strict=True):
            if form is not None:
                self._refuse_strangers(form, model, floating)
        found: list[list[str]] = []
        averaged: list[list[str]] = []
        for group in groups(present):
            covered = all(group <= {n for members in form.blocks.values() for n in members} for form in present)
            names = [name for name in self._common.names if name in group]
            (found if covered else averaged).append(names)
        if averaged:
            names = [name for group in averaged for name in group]
            warn(
                f"{names[0]!r}{_and_others(names)} have an importance in one form and none in another, so they are "
                "averaged plainly. Protect the same parameters in all guards."
            )
        return found

    def _refuse_strangers(self, form: ModelForm, model: GivenModel, floating: set[str]) -> None:
        """Refuse a form of other parameters, of other shapes, or one that was measured at other weights."""
        for block, members in form.blocks.items():
            for name in members:
                if name not in floating:
                    raise ConfigurationError(
                        f"{form.label} is of a parameter {name!r}, which the models have not; they have "
                        f"{', '.join(map(repr, sorted(floating)[:4]))} and so on. Give forms of the models that are "
                        "merged, by the same names."
                    )
            matrix = form.matrix(block)
            for name, own in matrix.diagonal().items() if not matrix.block.shapes else ():
                if tuple(own.shape) != self._common.shape(name):
                    raise ConfigurationError(
                        f"{form.label} is of {name!r} with shape {tuple(own.shape)}, and the models have it with "
                        f"{self._common.shape(name)}. Give forms of the models that are merged."
                    )
            for name, shape in zip(matrix.block.parameters, matrix.block.shapes, strict=False):
                if shape != self._common.shape(name):
                    raise ConfigurationError(
                        f"{form.label} is of {name!r} with shape {shape}, and the models have it with "
                        f"{self._common.shape(name)}. Give forms of the models that are merged."
                    )
            for name in members:
                anchor = form.anchor(name)
                if anchor is not None and not _is_rounded(anchor, self._read(model, name)):
                    raise ConfigurationError(
                        f"{form.label} was measured at other weights {name!r} than those of {model.label}. Give each "
                        "model's own, in the order of the models; to use it all the same, give its .matrices."
                    )

    def _tell_types(self) -> None:
        mixed = [n for n in self._common.names if self._is_number(n) and len(self._types(n)) > 1]
        if mixed and self._dtype is None:
            kinds = " and ".join(sorted(str(each) for each in self._types(mixed[0])))
            warn(
                f"{mixed[0]!r}{_and_others(mixed)} are {kinds}; the result is "
                f"{self._common.dtype(mixed[0])}. Give dtype= to have another."
            )

    def _types(self, name: str) -> set[torch.dtype]:
        own = [(model, self._common.own_name(model, name)) for model in self.models]
        return {model.tensors[each].dtype for model, each in own if each is not None}

    def _is_number(self, name: str) -> bool:
        """Whether a tensor can be averaged; whole numbers are counts and indices."""
        dtype = self._common.dtype(name)
        return dtype.is_floating_point or dtype.is_complex

    def _read(self, model: GivenModel, name: str) -> Tensor:
        own = self._common.own_name(model, name)
        assert own is not None  # since differences were refused
        return model.read(own)

    def _result(self, name: str) -> Described:
        dtype = self._common.dtype(name)
        real = self._dtype is not None and dtype.is_floating_point
        return Described(self._common.shape(name), self._dtype if real else dtype)  # type: ignore[arg-type]

    # What is made of it

    @torch.no_grad()
    def at(self, share: Share, *, out: str | os.PathLike[str] | None = None) -> "dict[str, Any] | Path":
        """Return the weights at a share, or write them and return where: see :func:`anchorhold.merge`."""
        shares = all_shares(share, len(self.models) - 1)
        statistics = [name for name in self._common.names if name.endswith("running_mean")]
        if statistics and max(shares) < 1 and "statistics" not in self._warned:
            self._warned.add("statistics")
            warn(
                f"{statistics[0]!r} and other running statistics of batch norms are averaged, and the mean of two "
                "networks' statistics is not that of the network in between. Compute them anew before it is used: "
                "torch.optim.swa_utils.update_bn(batches, model)."
            )
        if out is None:
            return self._in_memory(shares)
        path = tensor_files.as_path(out)
        with self._written(path) as sink:

            def emit(name: str, piece: Tensor, start: int) -> None:
                for each in self._common.copies[name]:
                    sink.write(each, piece, start)

            self._merge(shares, emit)
        return path

    def _in_memory(self, shares: Sequence[float]) -> dict[str, Any]:
        last, found = self.models[-1], {}
        merged: dict[str, Tensor] = {}

        def emit(name: str, piece: Tensor, start: int) -> None:
            if name not in merged:
                known = self._result(name)
                merged[name] = torch.empty(known.shape, dtype=known.dtype, device=piece.device)
            merged[name].view(-1)[start : start + piece.numel()] = piece.reshape(-1)

        self._merge(shares, emit)
        for name in self._common.names:
            found[last.names[name]] = merged[self._common.first(name)]
        return found | {last.names[name]: value for name, value in last.beside().items()}

    def _merge(self, shares: Sequence[float], emit: Emit) -> None:
        """Go through all tensors once, and hand each over as soon as it is merged, by the first of its names."""
        together = {name: group for group in self._groups for name in group}
        done: set[str] = set()
        for name in self._common.copies:
            if not self._is_number(name):
                emit(name, self._whole_numbers(name, shares), 0)
            elif name not in together:
                self._each_by_itself(name, shares, [None] * len(self.models), emit)
            elif name not in done:
                done.update(together[name])
                self._by_forms(together[name], shares, emit)

    def _by_forms(self, names: Sequence[str], shares: Sequence[float], emit: Emit) -> None:
        """Merge some parameters together."""
        pulls = []
        for k, (c, form) in enumerate(zip(shares, self.forms, strict=True)):
            blocks = [] if form is None else [b for b, members in form.blocks.items() if members[0] in names]
            matrices = None if form is None else tuple(map(form.matrix, blocks))
            pulls.append(Pull(c, matrices, self._scale(k, names)))
        every = [matrix for pull in pulls for matrix in pull.matrices or ()]
        if len(names) == 1 and all(isinstance(matrix, DiagonalMatrix) for matrix in every):
            self._each_by_itself(names[0], shares, pulls, emit)
            return
        device = self._read(self.models[-1], names[0]).device
        wide = widest_dtype(device)
        read = partial(self._finite, shares=shares)
        weights = [{n: read(k, n).to(device, wide) for n in names} for k in range(len(self.models))]
        pulls = [
            pull if pull.matrices is None
            else Pull(pull.share, tuple(m.to(device, wide) for m in pull.matrices), pull.scale)
            for pull in pulls
        ]  # fmt: skip
        found = solved(pulls, weights, self._absolute_damping(shares, names))
        for name in names:
            emit(name, found[name].to(self._result(name).dtype), 0)

    def _each_by_itself(self, name: str, shares: Sequence[float], pulls: "Sequence[Pull | None]", emit: Emit) -> None:
        """Merge a tensor whose elements have nothing to do with each other, a piece at a time."""
        read = [self._finite(k, name, shares).reshape(-1) for k in range(len(self.models))]
        device, dtype = read[-1].device, self._result(name).dtype
        wide = torch.complex128 if dtype.is_complex else widest_dtype(device)
        damping = self._absolute_damping(shares, [name]) if any(pulls) else 0.0
        omegas = [self._omega(pull) for pull in pulls]
        length = PIECE if device.type == "cpu" else LARGE_PIECE
        for start in range(0, max(1, read[-1].numel()), length):
            part = slice(start, start + length)
            own = [{name: each[part].to(device, wide)} for each in read]
            piecewise = [
                Pull(
                    c,
                    None if omega is None else (DiagonalMatrix(name, omega[part].to(device, wide)),),
                    pull.scale if pull else 1.0,
                )
                for c, omega, pull in zip(shares, omegas, pulls, strict=True)
            ]
            emit(name, solved(piecewise, own, damping)[name].to(dtype), start)

    @staticmethod
    def _omega(pull: "Pull | None") -> Tensor | None:
        if pull is None or pull.matrices is None:
            return None
        (matrix,) = pull.matrices
        assert isinstance(matrix, DiagonalMatrix)
        return matrix.omega.reshape(-1)

    def _whole_numbers(self, name: str, shares: Sequence[float]) -> Tensor:
        """Return a count or an index as the last model has it that has a share."""
        counted = [model for model, c in zip(self.models, shares, strict=True) if c]
        last = self._read(counted[-1], name)
        differs = any(not torch.equal(self._read(model, name).to(last.device), last) for model in counted[:-1])
        if differs and not name.endswith("num_batches_tracked") and name not in self._warned:
            self._warned.add(name)
            warn(
                f"{name!r} holds whole numbers ({last.dtype}), which differ and have no average: those of "
                f"{counted[-1].label} are taken. If they are quantised weights, load the models in 16 or 32 bits."
            )
        return last.clone()

    def _finite(self, k: int, name: str, shares: Sequence[float]) -> Tensor:
        """Read a model's tensor, or refuse one that would spoil the result."""
        found = self._read(self.models[k], name)
        if shares[k] and not is_finite(found):
            raise NotFiniteError(
                f"{name!r} of {self.models[k].label} is not finite, so nothing was merged. Its training has diverged: "
                "give an earlier checkpoint."
            )
        return found

    def _scale(self, k: int, names: Sequence[str]) -> float:
        """Return what makes a model's mean importance 1, over the network or over a group of parameters."""
        mean = self._mean_importance(k, names)
        return 1.0 if self._normalise == "none" or mean is None or not mean > 0 else 1 / mean

    def _mean_importance(self, k: int, names: Sequence[str]) -> float | None:
        form, own = self.forms[k], self._traces[k]
        if form is None or own is None:
            return None
        blocks = [b for b, members in form.blocks.items() if self._normalise == "network" or members[0] in names]
        numel = sum(torch.Size(self._common.shape(n)).numel() for b in blocks for n in form.blocks[b])
        return sum(own[block] for block in blocks) / max(1, numel)

    def _absolute_damping(self, shares: Sequence[float], names: Sequence[str]) -> float:
        """Return the damping in the unit of the scaled forms."""
        means = [(self._mean_importance(k, names), self._scale(k, names)) for k in range(len(self.models))]
        return self._damping * sum(c * mean * scale for c, (mean, scale) in zip(shares, means, strict=True) if mean)

    @contextlib.contextmanager
    def _written(self, path: Path) -> Iterator[tensor_files.Sink]:
        """Give a file or a folder to write to, laid out as the last model is."""
        last = self.models[-1]
        while isinstance(last, Adapted):
            last = last.base
        tensors = {name: self._result(name) for name in self._common.names}
        if beside := self.models[-1].beside():
            raise ConfigurationError(
                f"{next(iter(beside))!r} is no tensor, and a safetensors file holds tensors alone. Leave out= away, "
                "and save the state dict."
            )
        text = {"format": "pt"} | (last.text if isinstance(last, InFiles) else {})
        if isinstance(last, InFiles) and last.path.is_dir() and path.suffix != ".safetensors":
            files = {name: last.files[name].name for name in tensors}
            beside_weights = tensor_files.beside_weights(last.path)
            with tensor_files.written_folder(path, files, tensors, text, beside_weights) as sink:
                yield sink
            return
        with tensor_files.written_file(path, tensors, text) as sink:
            yield sink


def _is_rounded(anchor: Tensor, weight: Tensor) -> bool:
    """Whether two tensors are the same up to the rounding of the coarser one."""
    if anchor.shape != weight.shape:
        return True  # which is refused by its shape
    eps = max(torch.finfo(each.dtype).eps for each in (anchor, weight))
    one, other = anchor.to(weight.device, torch.float32), weight.to(torch.float32)
    return bool(((one - other).abs() <= 2 * eps * other.abs() + torch.finfo(torch.float32).tiny).all())


def _and_others(names: Sequence[str]) -> str:
    return f" and {len(names) - 1} others" if names[1:] else ""


def _refuse_the_same_memory(before: GivenModel, after: GivenModel) -> None:
    """Refuse two models that are one: state_dict() gives a model's own tensors, which go on changing with it."""
    if not isinstance(before, InMemory) or not isinstance(after, InMemory):
        return
    shared = [name for name in before.tensors if name in after.tensors]
    pairs = [(before.read(name), after.read(name)) for name in shared if before.tensors[name].dtype.is_floating_point]
    if pairs and all(one.data_ptr() == other.data_ptr() and one.device == other.device for one, other in pairs):
        raise ConfigurationError(
            f"{before.label} and {after.label} are the same tensors, so every average of them is what they are now: "
            "model.state_dict() gives a model's own weights, which training changes. Copy them before training: "
            "before = copy.deepcopy(model.state_dict())."
        )
