"""All that a plug-in imports: `strata.hooks` for algorithms, and the values of the other kinds.

A package that `STRATA_PLUGINS` names brings values of these classes at the top level of its modules:

- `Algorithm`: see docs/how-to/own-algorithm.md.
- `DataSource`, `ModelFactory`: a function that returns arrays, or a module.
- `Partitioner`: which client owns which samples. Its function gets a `PartitionTask`.
- `SelectionPolicy`: which seats train.

Importing this module loads neither the command line nor an HTTP or Docker client.
"""

from shared.federation.selection import SelectionPolicy
from shared.training.data.plugged import DataSource
from shared.training.description import Classes, Numbers, Sample, Target, Tokens
from shared.training.models import Classifier, ModelFactory
from shared.training.partition import Partitioner, PartitionTask
from strata import hooks
from strata.hooks import *  # noqa: F403

__all__ = [
    "Classes",
    "Classifier",
    "DataSource",
    "ModelFactory",
    "Numbers",
    "PartitionTask",
    "Partitioner",
    "Sample",
    "SelectionPolicy",
    "Target",
    "Tokens",
]
__all__ += hooks.__all__
