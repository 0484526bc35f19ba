"""What an algorithm is written with; algorithms import the framework from here, users' own from `strata.hooks`.

An algorithm is a frozen value (`Algorithm`): stateless hook objects of the three tiers, and the types of its records.
"""

from shared.core.bounds import Count
from shared.core.errors import BadInput, WireError
from shared.core.records import Nothing, Record
from shared.core.scores import Score
from shared.core.tensor_records import ModelState, Tensor, TensorMap
from shared.core.tensors import add, n_bytes, only, overlay, subtract, without
from shared.core.update_annotations import KeptBy, MaskOf, Mean, PerClient
from shared.federation.context import Context, EdgeView, ModelInfo, NoParams
from shared.federation.hooks.algorithm import Algorithm, Direction, Footprint, one_phase
from shared.federation.hooks.records import Broadcast, EdgeModel, GlobalModel, OwnBuffers, PersonalParams, Update
from shared.federation.hooks.results import Admission, Advance, Begin, Finish, Local, Phase, Verdict
from shared.federation.hooks.tiers import (
    CloudHooks,
    DeviceHooks,
    EdgeHooks,
    damped,
    default_local,
    delta_of,
    last_layers,
    local_names,
    own_buffers,
    personal_tensors,
    starting_model,
    test_by_owner,
    uploaded_names,
)
from shared.federation.hooks.trainer import Fit, Trainer, Training
from shared.federation.messages import Outcome, Task
from shared.federation.population import Seat
from shared.federation.test_sets import Samples, TestSet
from shared.simulation.cost_model import Passes
from shared.spec.experiment import ExperimentSpec
from shared.training.flops import Operations, operations
from shared.training.loop import Batch, Correct, Elementwise, Objective, Step, Trained, Transform
from shared.training.optimizers import Adam, Sgd, momentum_step_factor
from shared.wire.compression import Codec

__all__ = [
    "Adam",
    "Admission",
    "Advance",
    "Algorithm",
    "BadInput",
    "Batch",
    "Begin",
    "Broadcast",
    "CloudHooks",
    "Codec",
    "Context",
    "Correct",
    "Count",
    "DeviceHooks",
    "Direction",
    "EdgeHooks",
    "EdgeModel",
    "EdgeView",
    "Elementwise",
    "ExperimentSpec",
    "Finish",
    "Fit",
    "Footprint",
    "GlobalModel",
    "KeptBy",
    "Local",
    "MaskOf",
    "Mean",
    "ModelInfo",
    "ModelState",
    "NoParams",
    "Nothing",
    "Objective",
    "Operations",
    "Outcome",
    "OwnBuffers",
    "Passes",
    "PerClient",
    "PersonalParams",
    "Phase",
    "Record",
    "Samples",
    "Score",
    "Seat",
    "Sgd",
    "Step",
    "Task",
    "Tensor",
    "TensorMap",
    "TestSet",
    "Trained",
    "Trainer",
    "Training",
    "Transform",
    "Update",
    "Verdict",
    "WireError",
    "add",
    "damped",
    "default_local",
    "delta_of",
    "last_layers",
    "local_names",
    "momentum_step_factor",
    "n_bytes",
    "one_phase",
    "only",
    "operations",
    "overlay",
    "own_buffers",
    "personal_tensors",
    "starting_model",
    "subtract",
    "test_by_owner",
    "uploaded_names",
    "without",
]
