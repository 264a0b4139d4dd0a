"""One student and one teacher over a small vocabulary, and exact expectations over the sampled token."""

import numpy as np
import torch

from codriver.signals.surrogate import clipped

V = 12
rng = np.random.default_rng(0)


def random_V(scale=2.0, shape=(V,)):
    return torch.from_numpy(rng.normal(size=shape) * scale)


Z, ZT = random_V(), random_V()
LP, LQ = Z.log_softmax(-1), ZT.log_softmax(-1)
P, Q = LP.exp(), LQ.exp()
C = LP - LQ
KL = (P * C).sum()
FKL = -(Q * C).sum()
G_RKL, G_FKL = P * (C - KL), P - Q
S_VV = torch.eye(V, dtype=torch.float64) - P  # row v: d log p_v / d logits


def close(a, b, tol=1e-6):
    torch.testing.assert_close(
        torch.as_tensor(a, dtype=torch.float64), torch.as_tensor(b, dtype=torch.float64), atol=tol, rtol=0
    )


def gradient(loss_of_logits, z=Z):
    z = z.clone().requires_grad_()
    return torch.autograd.grad(loss_of_logits(z), z)[0]


def expected_gradient(loss_of_logp_V, z=Z):
    """E over sampled tokens v ~ p of the gradient of the token's loss; the sampling itself carries no gradient."""
    return gradient(lambda z: (z.detach().softmax(-1) * loss_of_logp_V(z.log_softmax(-1))).sum(), z)


def policy_gradient(advantage_V, z=Z):
    return expected_gradient(lambda logp: clipped(logp, logp.detach(), advantage_V), z)
