import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from codriver.signals.divergence import reverse_kl
from codriver.signals.sampled import (
    discounted,
    log_ratio_advantage,
    long_part,
)
from codriver.signals.surrogate import clipped

INF = float("inf")


def normal(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def logp(*probabilities):
    return torch.tensor(probabilities, dtype=torch.float64).log()


# ---- along the episode


def slow(A, mask, discount, normalised, *, later_only=False):
    """The sums written out; steps are counted in sampled tokens."""
    at = [t for t, m in enumerate(mask) if m]
    out = [0.0] * len(A)
    for i, t in enumerate(at):
        rest = at[i + 1 :] if later_only else at[i:]
        weights = [discount**n for n in range(len(rest))]
        total = sum(w * A[s] for w, s in zip(weights, rest, strict=True))
        if normalised:
            out[t] = total / sum(weights) if rest else 0.0
        else:
            out[t] = total * (discount if later_only else 1.0)
    return torch.tensor(out, dtype=torch.float64)


@pytest.mark.parametrize("discount", [0.0, 0.3, 0.9, 1.0])
@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("T", [1, 2, 7, 33])
def test_equals_the_sums_written_out(discount, normalised, T):
    A, mask = normal(T, T), normal(T + 1, T) > -0.5
    expected = slow(A.tolist(), mask.tolist(), discount, normalised)
    torch.testing.assert_close(discounted(A, mask, discount=discount, length_normalised=normalised), expected)
    expected = slow(A.tolist(), mask.tolist(), discount, normalised, later_only=True)
    torch.testing.assert_close(long_part(A, mask, discount=discount, length_normalised=normalised), expected)


def test_discount_zero_is_the_identity_on_sampled_tokens():
    A, mask = normal(2, 3, 9), normal(3, 3, 9) > 0
    assert torch.equal(discounted(A, mask, discount=0.0), A * mask)


def test_own_and_later_tokens_add_up():
    A, mask = normal(4, 9), torch.ones(9)
    for discount in (0.0, 0.6, 1.0):
        whole = discounted(A, mask, discount=discount)
        torch.testing.assert_close(A + long_part(A, mask, discount=discount, length_normalised=False), whole)


@pytest.mark.parametrize("normalised", [False, True])
def test_a_short_episode_gets_the_same_alone_and_padded_beside_a_longer_one(normalised):
    short, padding = normal(5, 5), torch.full((8,), 1e3, dtype=torch.float64)
    batch = torch.stack([torch.cat([short, padding]), normal(6, 13)])
    mask = torch.stack([torch.arange(13) < 5, torch.arange(13) < 13])
    for function in (discounted, long_part):
        alone = function(short, torch.ones(5), discount=0.9, length_normalised=normalised)
        torch.testing.assert_close(function(batch, mask, discount=0.9, length_normalised=normalised)[0, :5], alone)


def test_tool_output_neither_contributes_nor_ages_the_discount():
    """A placeholder behaviour log-prob of 0.0 on a tool token would otherwise read as -log pi_T, a penalty."""
    spoken = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
    with_tool = torch.tensor([1.0, -50.0, float("nan"), 2.0, 4.0], dtype=torch.float64)
    mask = torch.tensor([1, 0, 0, 1, 1])
    for function in (discounted, long_part):
        expected = function(spoken, torch.ones(3), discount=0.5)
        assert torch.equal(function(with_tool, mask, discount=0.5)[mask.bool()], expected)
        assert (function(with_tool, mask, discount=0.5)[~mask.bool()] == 0).all()


def test_an_episode_without_sampled_tokens_gets_zeros():
    for function in (discounted, long_part):
        for normalised in (False, True):
            assert (function(torch.ones(4), torch.zeros(4), discount=0.5, length_normalised=normalised) == 0).all()


@pytest.mark.parametrize("function", [discounted, long_part])
def test_refuses_bad_discounts_and_masks(function):
    with pytest.raises(ValueError, match=rf"{function.__name__}: the discount must be in \[0, 1\], got 1.5"):
        function(torch.ones(3), torch.ones(3), discount=1.5)
    with pytest.raises(ValueError, match=f"{function.__name__}: advantage and mask must have one shape"):
        function(torch.ones(2, 3), torch.ones(3), discount=1.0)


def test_the_advantage_is_detached_along_the_episode():
    A = torch.ones(3, requires_grad=True)
    assert not discounted(A, torch.ones(3), discount=1.0).requires_grad
    assert not long_part(A, torch.ones(3)).requires_grad


def test_single_step_plus_long_part_have_the_gradient_of_the_sequence_kl():
    """Two tokens over three symbols, all nine sequences enumerated: MiniLLM's decomposition."""
    tree, tree_t = normal(7, 4, 3), normal(8, 4, 3)  # row 0: the start; row 1 + a: after a
    rows, tokens = (
        torch.tensor([[0, 1 + a] for a in range(3) for _ in range(3)]),
        torch.tensor([[a, b] for a in range(3) for b in range(3)]),
    )

    def sequence_logp(tree):
        return tree.log_softmax(-1)[rows, tokens]

    def exact(tree):
        lp = sequence_logp(tree)
        return (lp.sum(-1).exp() * (lp - sequence_logp(tree_t)).sum(-1)).sum()

    def decomposed(tree):
        lp = sequence_logp(tree)
        later = long_part(
            log_ratio_advantage(sequence_logp(tree_t), lp), torch.ones(9, 2), discount=1.0, length_normalised=False
        )
        per_token = clipped(lp, lp.detach(), later) + reverse_kl(tree, tree_t)[rows]
        return (lp.detach().sum(-1).exp() * per_token.sum(-1)).sum()

    tree.requires_grad_()
    a, b = (torch.autograd.grad(f(tree), tree)[0] for f in (exact, decomposed))
    torch.testing.assert_close(a, b)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(-20, 20), st.booleans()), min_size=1, max_size=20), st.floats(0, 1), st.booleans())
def test_reward_to_go_equals_the_sums_for_any_mask(pairs, discount, normalised):
    A, mask = [a for a, _ in pairs], [m for _, m in pairs]
    value = discounted(
        torch.tensor(A, dtype=torch.float64), torch.tensor(mask), discount=discount, length_normalised=normalised
    )
    torch.testing.assert_close(value, slow(A, mask, discount, normalised), atol=1e-9, rtol=1e-9)
