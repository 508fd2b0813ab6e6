"""The model's own names of weights in a checkpoint whose wrappers and keys have added to them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from workbench.errors import UsageError
from workbench.trained_model.worker.tensors import Tensors


def matched(
    tensors: Tensors, shapes: Mapping[str, tuple[int, ...]], tied: Mapping[str, str]
) -> dict[str, str]:
    """Name of the model -> name in the checkpoint, a tied weight once.

    Raises:
        UsageError: the checkpoint is of another model, or a tied weight has two values.
    """
    places = without_prefix(tensors.shapes, shapes)
    names = dict[str, str]()
    for name, shape in shapes.items():
        source = tied.get(name)
        if source is not None and source in places:
            _check_tied(tensors, places, name, source)
            continue
        place = places.get(name)
        if place is None and name in tied.values():  # kept under the other name
            place = next(
                (places[value] for value, of in tied.items() if of == name and value in places),
                None,
            )
        if place is None:
            raise UsageError(
                f"The checkpoint lacks the weight {name}: it is of another model, or of a part of "
                "it. Name the model with --base."
            )
        if tensors.shapes[place] != shape:
            raise UsageError(
                f"The weight {name} has the shape {list(tensors.shapes[place])} in the checkpoint "
                f"and {list(shape)} in the model's config: name the right model with --base."
            )
        names[name] = place
    return names


def _check_tied(tensors: Tensors, places: Mapping[str, str], name: str, source: str) -> None:
    """Raises UsageError: the two are one weight by the config, and the training parted them."""
    one, other = places.get(name), places[source]
    if one is None or one == other:
        return
    read = tensors.read([one, other])
    if not read[one].equal(read[other]):
        raise UsageError(
            f"The weights {name} and {source} are one by the model's config.json, and differ in "
            'the checkpoint: the training parted them. Set "tie_word_embeddings" to false there.'
        )


def without_prefix(names: Iterable[str], expected: Iterable[str]) -> dict[str, str]:
    """Name that the model uses -> name in the checkpoint, which wrappers may have added to.

    The first one of the usual prefixes by which most of the `expected` names are found; without
    expected names, what all names begin with.
    """
    bare = {_unwrapped(name): name for name in names}
    expected_names = set(expected)
    if not expected_names:
        common = [
            prefix
            for prefix in _PREFIXES
            if prefix and all(name.startswith(prefix) for name in bare)
        ]
        cut = max(common, key=len, default="")
        return {name.removeprefix(cut): old for name, old in bare.items()}
    best = max(_PREFIXES, key=lambda prefix: sum(prefix + name in bare for name in expected_names))
    return {name.removeprefix(best): old for name, old in bare.items() if name.startswith(best)}


def _unwrapped(name: str) -> str:
    for mark in ("_checkpoint_wrapped_module.", "_fsdp_wrapped_module.", "_orig_mod."):
        name = name.replace(mark, "")
    return name


_PREFIXES = (
    *("", "model.", "module.", "state_dict.", "model.module.", "module.module.", "app.model."),
    *("app.", "state_dict.model.", "net."),
)
