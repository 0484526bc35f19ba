"""What an algorithm is: a frozen value of three stateless hook objects and its record types."""

from shared.algorithms._hooks.algorithm import Algorithm, one_phase
from shared.algorithms._hooks.hooks import (
    CloudHooks,
    DeviceHooks,
    EdgeHooks,
    default_local,
    delta_of,
    kept_back,
    starting_model,
    test_by_owner,
)
from shared.algorithms._hooks.layers import last_layers
from shared.algorithms._hooks.values import (
    Admission,
    Advance,
    Begin,
    Bench,
    Broadcast,
    EdgeModel,
    Finish,
    Fit,
    GlobalModel,
    Local,
    OwnBuffers,
    Phase,
    Update,
    Verdict,
)

__all__ = [
    "Admission",
    "Advance",
    "Algorithm",
    "Begin",
    "Bench",
    "Broadcast",
    "CloudHooks",
    "DeviceHooks",
    "EdgeHooks",
    "EdgeModel",
    "Finish",
    "Fit",
    "GlobalModel",
    "Local",
    "OwnBuffers",
    "Phase",
    "Update",
    "Verdict",
    "default_local",
    "delta_of",
    "kept_back",
    "last_layers",
    "one_phase",
    "starting_model",
    "test_by_owner",
]
