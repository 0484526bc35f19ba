"""FedAvg.

H. B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Aguera y Arcas: Communication-Efficient Learning of Deep Networks
from Decentralized Data. AISTATS 2017, algorithm 1.

    w_k  <- E epochs of SGD from w_t on the n_k samples of client k
    w_t+1 = w_t + sum_k n_k / n * (w_k - w_t)

Updates travel instead of models, which is the same sum. Every hook is the default. With `edge_rounds` above 1 it is
hierarchical FedAvg (L. Liu et al.: Client-Edge-Cloud Hierarchical Federated Learning. ICC 2020, algorithm 1): an
edge's model is the mean of its devices, weighted by the samples of those that took part.
"""

from shared.federation.hooks import Algorithm

ALGORITHM = Algorithm(
    name="fedavg",
    paper="McMahan et al.: Communication-Efficient Learning of Deep Networks from Decentralized Data. AISTATS 2017",
)
