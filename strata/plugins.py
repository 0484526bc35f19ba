"""All that a plug-in imports: `strata.hooks` for algorithms, and the values of the other kinds.

A package that `STRATA_PLUGINS` names brings values of these classes at the top level of its modules:

- `Algorithm`: see docs/how-to/own-algorithm.md.
- `DataSource`, `ModelFactory`: a function that returns arrays, or a module.
- `Partitioner`: which client owns which samples. Its function gets a `PartitionTask`.
- `SelectionPolicy`: which seats train; `n_chosen` is the number to select.
- `Loss`, `Metric`: what training minimises and evaluations measure; see docs/how-to/own-metric.md.

Importing this module loads neither the command line nor an HTTP or Docker client.
"""

from shared.core.scores import ClassCounts
from shared.federation.selection import SelectionPolicy, n_chosen, within_home_edges
from shared.training.data.plugged import DataSource
from shared.training.description import Classes, Numbers, Sample, Target, Tokens
from shared.training.losses import Loss
from shared.training.metrics.metric import Metric
from shared.training.models import Classifier, ModelFactory, Shape
from shared.training.partition import Partitioner, PartitionTask
from strata import hooks
from strata.hooks import *  # noqa: F403

__all__ = [
    "ClassCounts",
    "Classes",
    "Classifier",
    "DataSource",
    "Loss",
    "Metric",
    "ModelFactory",
    "Numbers",
    "PartitionTask",
    "Partitioner",
    "Sample",
    "SelectionPolicy",
    "Shape",
    "Target",
    "Tokens",
    "n_chosen",
    "within_home_edges",
]
__all__ += hooks.__all__
