"""FedAvg.

H. B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Aguera y Arcas: Communication-Efficient Learning of Deep Networks
from Decentralized Data. AISTATS 2017, algorithm 1.

    w_k  <- E epochs of SGD from w_t on the n_k samples of client k
    w_t+1 = w_t + sum_k n_k / n * (w_k - w_t)

All hooks are the defaults: `CloudHooks`, `EdgeHooks` and `DeviceHooks` in `shared/federation/hooks/tiers.py`. The sum
over k is computed where updates arrive, by `Accumulator` in `shared/federation/aggregation`; `mean_of` divides it by n,
and the hook `aggregate` adds the mean to w_t.

With `edge_rounds` above 1 it is hierarchical FedAvg (L. Liu et al.: Client-Edge-Cloud Hierarchical Federated Learning.
ICC 2020, algorithm 1): an edge's model is the mean over its participating devices, weighted by samples.

Deviation: updates are sent instead of models; their weighted mean, added to w_t, is the paper's mean of models.
"""

from shared.federation.hooks import Algorithm

ALGORITHM = Algorithm(
    name="fedavg",
    paper="McMahan et al.: Communication-Efficient Learning of Deep Networks from Decentralized Data. AISTATS 2017",
    asynchronous="yes",
)
