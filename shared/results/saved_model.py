"""The trained model of a results folder, and new samples for it: tables, arrays, images."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from shared.core.errors import BadInput, NotFound, StrataError
from shared.core.plugins import digest_of
from shared.core.tensors import digest
from shared.results.folder import PREPROCESSING, RUN, model_path, no_model, read_run
from shared.run_records.runs import FINAL, RunInfo
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
    preprocessing, state = read_preprocessing(folder), saved_state(folder, name)
    _check_package(preprocessing)
    return TrainedModel(preprocessing, state)


def saved_state(folder: Path, name: str = "global") -> dict[str, torch.Tensor]:
    """Returns the tensors of a model of a results folder.

    Raises:
        NotFound: the folder has no such model.
        ModelNotUsable: its file is damaged, or holds the global model of another round than the record of the run.
    """
    path = model_path(folder, name)
    try:
        state = load_file(path)
    except OSError:
        raise no_model(folder, name) from None
    except SafetensorError as error:
        raise ModelNotUsable(f"{path} is no valid safetensors: {error}") from None
    if name == "global" and (folder / RUN).is_file():
        _check_round(path, state, read_run(folder))
    return state


def _check_round(path: Path, state: dict[str, torch.Tensor], info: RunInfo) -> None:
    """Checks that the global model is that of the record: it is written when a run pauses or ends."""
    if info.model_sha256 not in (None, "", digest(state)):
        why = "it goes on" if info.status not in FINAL else info.reason or "its results were not written to the end"
        have = f"{path} is of another round than {info.rounds}, the last of run {info.run}"
        raise ModelNotUsable(f"{have} ({info.status}: {why}): `strata pull {info.run}` fetches that of the last")


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
