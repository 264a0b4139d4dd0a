"""Every divergence on a list of tokens, beside the one over the whole vocabulary that it stands for."""

import pytest
import torch

from codriver.signals import divergence
from codriver.signals.support import (
    REMAINDERS,
    gather_logp,
    support_forward_kl,
    support_jensen_shannon,
    support_reverse_kl,
)

INF = float("inf")
FORMS = [support_reverse_kl, support_forward_kl, support_jensen_shannon]
FULL = {
    support_reverse_kl: divergence.reverse_kl,
    support_forward_kl: divergence.forward_kl,
    support_jensen_shannon: divergence.jensen_shannon,
}
every_form = pytest.mark.parametrize("form", FORMS, ids=lambda f: f.__name__)
every_remainder = pytest.mark.parametrize("remainder", REMAINDERS)


def logits(seed, *shape):
    return 2 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def on(form, ids, z, zt, **options):
    return form(gather_logp(z.log_softmax(-1), ids), gather_logp(zt.log_softmax(-1), ids), **options)


def gradient(f, z):
    z = z.clone().requires_grad_()
    return torch.autograd.grad(f(z).sum(), z)[0]
