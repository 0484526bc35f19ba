"""The optimisers of devices, and the effective number of steps of momentum SGD."""

from __future__ import annotations

import torch
from torch import Tensor


class Sgd:
    """SGD on all parameters at once; its velocities last for one training."""

    def __init__(self, lr: float, momentum: float, weight_decay: float) -> None:
        self.lr, self.momentum, self.weight_decay = lr, momentum, weight_decay
        self.velocities: list[Tensor] | None = None

    def __call__(self, parameters: list[Tensor], gradients: list[Tensor]) -> None:
        """Takes one step in place; the gradients are overwritten."""
        if self.weight_decay:
            torch._foreach_add_(gradients, parameters, alpha=self.weight_decay)
        if self.momentum:
            gradients = self._with_momentum(gradients)
        torch._foreach_add_(parameters, gradients, alpha=-self.lr)

    def keep_first(self, n: int) -> None:
        """Drops the velocities of all but the first n of the devices whose tensors are stacked."""
        if self.velocities is not None:
            self.velocities = [velocity[:n] for velocity in self.velocities]

    def _with_momentum(self, gradients: list[Tensor]) -> list[Tensor]:
        if self.velocities is None:
            self.velocities = gradients
        else:
            torch._foreach_mul_(self.velocities, self.momentum)
            torch._foreach_add_(self.velocities, gradients)
        return self.velocities


class Adam:
    """Adam (D. P. Kingma, J. Ba: Adam. ICLR 2015, algorithm 1), with moments that start at 0 in each visit.

    It equals `torch.optim.Adam` bit for bit; weight decay is added to the gradient. `decoupled` is AdamW (I.
    Loshchilov, F. Hutter: Decoupled Weight Decay Regularization. ICLR 2019, algorithm 2), bit for bit
    `torch.optim.AdamW`: the decay shrinks the parameters instead.
    """

    BETAS, EPSILON = (0.9, 0.999), 1e-8

    def __init__(self, lr: float, weight_decay: float, *, decoupled: bool = False) -> None:
        self.lr, self.weight_decay, self.decoupled = lr, weight_decay, decoupled
        self.means: list[Tensor] = []
        self.squares: list[Tensor] = []
        self.n_steps = 0

    def __call__(self, parameters: list[Tensor], gradients: list[Tensor]) -> None:
        """Takes one step in place; the gradients are overwritten."""
        if not self.n_steps:
            self.means, self.squares = ([torch.zeros_like(p) for p in parameters] for _ in range(2))
        self.n_steps += 1
        if self.weight_decay and self.decoupled:
            torch._foreach_mul_(parameters, 1 - self.lr * self.weight_decay)
        elif self.weight_decay:
            torch._foreach_add_(gradients, parameters, alpha=self.weight_decay)
        one, two = self.BETAS
        torch._foreach_lerp_(self.means, gradients, 1 - one)
        torch._foreach_mul_(self.squares, two)
        torch._foreach_addcmul_(self.squares, gradients, gradients, 1 - two)
        roots = torch._foreach_sqrt(self.squares)
        torch._foreach_div_(roots, (1 - two**self.n_steps) ** 0.5)
        torch._foreach_add_(roots, self.EPSILON)
        torch._foreach_addcdiv_(parameters, self.means, roots, -self.lr / (1 - one**self.n_steps))


def step_of(name: str, lr: float, weight_decay: float) -> Adam | None:
    """Returns the step of a spec's `optimizer` for one training; None for SGD, the loop's own."""
    return None if name == "sgd" else Adam(lr, weight_decay, decoupled=name == "adamw")


def momentum_step_factor(n_steps: int, momentum: float) -> float:
    """Returns how far SGD moves on a constant gradient, in units of learning rate times gradient.

    Without momentum this is `n_steps`. `(start - end) / (lr * momentum_step_factor)` is then a weighted mean of the
    gradients of the steps. It is the 1-norm of the accumulation vector of momentum SGD: J. Wang, Q. Liu, H. Liang,
    G. Joshi, H. V. Poor: Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization.
    NeurIPS 2020, section 4.1.
    """
    if not momentum:
        return float(n_steps)
    return (n_steps - momentum * (1 - momentum**n_steps) / (1 - momentum)) / (1 - momentum)
