"""Whether the tensors that a spec's `init` names fit the run's model, and what is said of those that were left out."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch

from shared.core.errors import BadInput
from shared.core.tensor_records import Tensor
from shared.spec.fields import Init
from shared.training.data.reading import listed

SHOWN = 3
"""Most tensors that an error names."""


def check_skip(init: Init, names: Collection[str]) -> None:
    """Checks that each name of `skip` is that of a tensor or a module, and the prefix that of some tensor.

    Raises:
        BadInput: one is not.
    """
    plain = init.replace(skip=())
    known = {*names, *(own for name in names if (own := plain.renamed(name)) is not None)}
    for each in init.skip:
        if not any(init.replace(skip=(each,)).skips(name) for name in known):
            some = listed(sorted({name.partition(".")[0] for name in names}))
            raise BadInput(f"init.skip: no tensor or module is named {each!r}; there are {some}", field="init.skip")
    if init.prefix is not None and not any(name.startswith(init.prefix) for name in names):
        raise BadInput(
            f"init.prefix: no tensor begins with {init.prefix!r}: {listed(sorted(names))}", field="init.prefix"
        )


def widened(model: Mapping[str, Tensor], shapes: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Returns the tensors with floats of fewer bits as the run's model has them, which is exact, and from which dtypes.

    Args:
        model: the tensors with which the run would begin.
        shapes: of the run's model.
    """
    found, dtypes = dict(model), set[str]()
    for name, tensor in model.items():
        own = shapes[name].dtype if name in shapes else tensor.dtype
        if own != tensor.dtype and tensor.is_floating_point() and torch.promote_types(tensor.dtype, own) == own:
            found[name] = tensor.to(own)
            dtypes.add(str(tensor.dtype).removeprefix("torch."))
    return found, tuple(sorted(dtypes))


def check_fit(model: Mapping[str, Tensor], shapes: Mapping[str, Tensor], init: Init, names: Collection[str]) -> None:
    """Checks names, shapes, dtypes and values against the run's model.

    Args:
        model: the tensors with which the run would begin.
        shapes: of the run's model.
        init: of the spec.
        names: of all tensors at the place that it names.

    Raises:
        BadInput: naming the tensors, both shapes, and the option that may help.
    """
    misfits = {name: why for name in sorted({*model, *shapes}) if (why := _misfit(name, model, shapes)) is not None}
    if misfits:
        more = f" (and {len(misfits) - SHOWN} more)" if len(misfits) > SHOWN else ""
        hint = _prefix_hint(shapes, names) or _skip_hint(misfits, {*shapes, *model})
        raise BadInput(f"{init.field}: {'; '.join(list(misfits.values())[:SHOWN])}{more}. {hint}", field=init.field)
    wrong = next((name for name in sorted(model) if not torch.isfinite(model[name]).all()), None)
    if wrong is not None:
        raise BadInput(f"{init.field}: {wrong!r} is not finite", field=init.field)


def _misfit(name: str, model: Mapping[str, Tensor], shapes: Mapping[str, Tensor]) -> str | None:
    if name not in model:
        return f"it has no tensor {name!r}"
    if name not in shapes:
        return f"the run's model has no tensor {name!r}"
    found, own = model[name], shapes[name]
    if (found.shape, found.dtype) == (own.shape, own.dtype):
        return None
    return f"{name!r} is {found.dtype} {tuple(found.shape)}, the run's is {own.dtype} {tuple(own.shape)}"


def _skip_hint(misfits: Collection[str], names: Collection[str]) -> str:
    """What leaves these tensors out, in words: a module by its name if all of its tensors misfit."""
    fit = {_module(name) for name in names if name not in misfits}
    skipped = sorted({name if _module(name) in fit else _module(name) for name in misfits})
    return f"`init.skip: [{listed(skipped)}]` leaves such tensors as the seed draws them"


def _module(name: str) -> str:
    return name.rpartition(".")[0] or name


def _prefix_hint(shapes: Collection[str], names: Collection[str]) -> str | None:
    """The prefix with which the place has all tensors of the model, in words."""
    first = next(iter(shapes))
    for prefix in sorted(name.removesuffix(first) for name in names if name.endswith(f".{first}")):
        if all(f"{prefix}{name}" in names for name in shapes):
            return f"`init.prefix: {prefix}` takes that away from their names"
    return None


def line_of(
    init: Init, n_taken: int, names: Collection[str], kept: Collection[str], dtypes: Collection[str] = ()
) -> tuple[str, ...]:
    """Returns a line of the run's plan that says which tensors `init` gave, which not; none where it gave all as is."""
    unused = sorted(name for name in names if init.renamed(name) is None)
    if not kept and not unused and not dtypes:
        return ()
    parts = [f"{n_taken} tensors of {init.file or init.run}"]
    parts += [f"converted from {', '.join(dtypes)}, without rounding"] if dtypes else []
    parts += [f"drawn by the seed: {listed(sorted(kept))}"] if kept else []
    parts += [f"not used: {listed(unused)}"] if unused else []
    return (f"begins with {'; '.join(parts)}",)
