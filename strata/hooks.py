"""All that an algorithm of one's own imports of StrataFL; see docs/how-to/own-algorithm.md.

- The algorithm and its hooks: `Algorithm` with its `Footprint`, `CloudHooks`, `EdgeHooks`, `DeviceHooks`, `Phase`.
- What hooks get: `Context` with its `ModelInfo`, `Trainer`, `EdgeView`, `Seat`, `Task`, `Outcome`, `Samples`.
- What hooks return: `Begin`, `Verdict`, `Admission`, `Advance`, `Finish`, `Local`, `Fit`, `Score`; `BadInput` and
  `WireError` are what they raise.
- FedAvg's records, to use or to extend: `Broadcast`, `Update`, `GlobalModel`, `EdgeModel`, `OwnBuffers`.
- Records of one's own: `Record`, with fields of type `ModelState`, `Tensor`, `TensorMap`, `Count`; `Mean`, `PerClient`,
  `MaskOf` and `KeptBy` annotate an update's fields with the rule by which they are aggregated.
- FedAvg's steps, for hooks that change one of them: `starting_model`, `default_local`, `delta_of`, `uploaded_names`.
- Layers that clients keep: `PersonalParams` counts or names them, `personal_tensors` and `last_layers` find them.
- Arithmetic on tensors by name: `add`, `subtract`, `only`, `without`, `overlay`.
- Local training: `Training` is what `DeviceHooks.training` returns, with an `Elementwise` correction; `Objective`,
  `Correct`, `Step` and `Transform` are what `Trainer.fit` takes; `Sgd`, `Adam`, `momentum_step_factor`.
- Pictures: `figure_by_client` and `labels_by_round` make a module's `PICTURES`, shown beside the pictures of every run.

Importing this module loads neither the command line nor an HTTP or Docker client.
"""

from shared.federation import hooks
from shared.federation.hooks import *  # noqa: F403
from shared.plots.algorithm_pictures import Pictures, figure_by_client, labels_by_round

__all__ = ["Pictures", "figure_by_client", "labels_by_round"]
__all__ += hooks.__all__
