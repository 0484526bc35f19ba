"""The trained model of a results folder, and new samples for it: tables, arrays, images."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file

from shared.core.errors import BadInput, NotFound, StrataError
from shared.core.plugins import digest_of
from shared.results.folder import PREPROCESSING, model_path, no_model
from shared.training.inference import TrainedModel
from shared.training.preprocessing import Preprocessing


class ModelNotUsable(StrataError):
    """A run's model cannot be used here; the message says what is missing."""

    status, code = 422, "model_not_usable"


def saved_model(folder: Path, name: str = "global") -> TrainedModel:
    """Returns a model of a results folder, ready for use.

    Raises:
        NotFound: the folder has no such model, or not what its use needs.
        ModelNotUsable: the plug-in that builds its module is not here, or is another version; a file is damaged.
    """
    preprocessing = read_preprocessing(folder)
    path = model_path(folder, name)
    try:
        state = load_file(path)
    except OSError:
        raise no_model(folder, name) from None
    except SafetensorError as error:
        raise ModelNotUsable(f"{path} is no valid safetensors: {error}") from None
    _check_package(preprocessing)
    return TrainedModel(preprocessing, state)


def read_preprocessing(folder: Path) -> Preprocessing:
    """Returns how a run's samples are preprocessed.

    Raises:
        NotFound: the folder does not say it; ModelNotUsable: the file is damaged.
    """
    path = folder / PREPROCESSING
    try:
        return Preprocessing.of_json(path.read_bytes())
    except OSError:
        why = "its run has not ended, an earlier version wrote it, or its algorithm changes samples by code of its own"
        raise NotFound(f"{folder} has no {PREPROCESSING}: {why}") from None
    except ValueError as error:
        raise ModelNotUsable(f"{path} cannot be read: {str(error)[:500]}") from None


def _check_package(preprocessing: Preprocessing) -> None:
    module = preprocessing.module
    if module.package is None:
        return
    try:
        found = digest_of(module.package)
    except BadInput as error:
        needed = f"the module {module.name} is built by the package {module.package}: STRATA_PLUGINS={module.package}"
        raise ModelNotUsable(f"{needed} names it ({error.detail})") from None
    if found != module.package_sha256:
        raise ModelNotUsable(
            f"the package {module.package}, which builds {module.name}, is another version than the run had "
            f"(sha256 {found[:16]}, then {str(module.package_sha256)[:16]})"
        )
