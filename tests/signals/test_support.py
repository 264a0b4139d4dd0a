import math

import pytest
import torch

from codriver.signals import divergence
from codriver.signals.support import (
    REMAINDERS,
    gather_logp,
    overlap,
    support_forward_kl,
    support_jensen_shannon,
    support_mass,
    support_reverse_kl,
    top_k_ids,
    union_ids,
    with_sampled_ids,
)
from tests.signals.lists import FORMS, FULL, every_form, every_remainder, gradient, logits, on

# ---- choosing the tokens


def test_top_k_lists_the_most_likely_tokens_first():
    assert top_k_ids(torch.tensor([[0.0, 5.0, 3.0], [9.0, 1.0, 2.0]]), 2).tolist() == [[1, 2], [0, 2]]
    assert not top_k_ids(torch.zeros(3, requires_grad=True), 2).requires_grad


@pytest.mark.parametrize("k", [0, 4, -1])
def test_k_beyond_the_vocabulary_is_refused(k):
    with pytest.raises(ValueError, match=f"top_k_ids: k must be in 1..3 .the vocabulary., got {k}"):
        top_k_ids(torch.zeros(2, 3), k)


def test_union_keeps_the_first_slot_of_a_token_and_empties_the_others():
    assert union_ids(torch.tensor([[4, 7], [1, 2]]), torch.tensor([[7, 2], [8, 9]])).tolist() == [
        [4, 7, -1, 2],
        [1, 2, 8, 9],
    ]
    assert union_ids(torch.tensor([4, -1]), torch.tensor([4, 4])).tolist() == [4, -1, -1, -1]
    assert union_ids(torch.tensor([[-1, 3], [5, 5]]), torch.tensor([[3, 6], [6, 5]])).tolist() == [
        [-1, 3, -1, 6],
        [5, -1, 6, -1],
    ]


def test_union_refuses_different_positions():
    with pytest.raises(ValueError, match=r"union_ids: all axes but the last must agree, got \(2, 3\) and \(3, 3\)"):
        union_ids(torch.zeros(2, 3, dtype=torch.int64), torch.zeros(3, 3, dtype=torch.int64))


@every_form
@every_remainder
def test_a_token_on_both_lists_is_counted_once(form, remainder):
    z, zt = logits(0, 5, 9), logits(1, 5, 9)
    a, b = top_k_ids(z, 4), top_k_ids(zt, 4)
    together = union_ids(a, b)
    value = on(form, together, z, zt, remainder=remainder)
    g = gradient(lambda z: on(form, together, z, zt, remainder=remainder), z)
    for t in range(5):
        once = torch.tensor(sorted(set(a[t].tolist()) | set(b[t].tolist())))
        torch.testing.assert_close(value[t], on(form, once, z[t], zt[t], remainder=remainder))
        torch.testing.assert_close(
            g[t], gradient(lambda z, once=once, t=t: on(form, once, z, zt[t], remainder=remainder), z[t])
        )
    torch.testing.assert_close(
        support_mass(gather_logp(z.log_softmax(-1), a))
        <= support_mass(gather_logp(z.log_softmax(-1), together)) + 1e-12,
        torch.ones(5, dtype=torch.bool),
    )


def test_the_sampled_token_makes_local_matching_see_mass_off_the_list():
    zt = torch.tensor([5.0, 4.0, 0.0, 0.0], dtype=torch.float64)
    z = torch.tensor([1.0, 0.0, 8.0, 0.0], dtype=torch.float64)  # right on the list, all mass off it
    ids = top_k_ids(zt, 2)
    assert on(support_reverse_kl, ids, z, zt, remainder="renormalize") < 1e-12
    repaired = with_sampled_ids(ids, torch.tensor(2))
    assert on(support_reverse_kl, repaired, z, zt, remainder="renormalize") > 1
    assert gradient(lambda z: on(support_reverse_kl, repaired, z, zt, remainder="renormalize"), z)[2] > 0.01


def test_mass_and_overlap_are_reported_as_shares():
    lp = torch.tensor([[0.5, 0.25, 0.0], [0.1, 0.1, 0.1]]).log()
    torch.testing.assert_close(support_mass(lp), torch.tensor([0.75, 0.3]))
    torch.testing.assert_close(
        overlap(torch.tensor([[1, 2], [3, 4]]), torch.tensor([[2, 5, 9], [6, 7, 8]])), torch.tensor([0.5, 0.0])
    )
    torch.testing.assert_close(overlap(torch.tensor([1, -1]), torch.tensor([1, -1])), torch.tensor(1.0))
    torch.testing.assert_close(overlap(torch.tensor([-1]), torch.tensor([-1])), torch.tensor(0.0))


# ---- values


def slow(form, p, q, remainder, beta=0.5):
    """The equations with plain numbers; stop_gradient differs from the bare sum in its gradient only."""
    if remainder == "renormalize":
        p, q = [x / sum(p) for x in p], [x / sum(q) for x in q]
    if remainder == "tail":
        p, q = [*p, 1 - sum(p)], [*q, 1 - sum(q)]
    kl = lambda a, b: sum(x * math.log(x / y) for x, y in zip(a, b, strict=True))  # noqa: E731
    m = [beta * y + (1 - beta) * x for x, y in zip(p, q, strict=True)]
    extra = (sum(q) - sum(p)) if remainder == "generalized" else 0.0
    return {
        support_reverse_kl: kl(p, q) + extra,
        support_forward_kl: kl(q, p) - extra,
        support_jensen_shannon: beta * kl(q, m) + (1 - beta) * kl(p, m),
    }[form]


@every_form
@every_remainder
def test_equals_the_equation_written_out(form, remainder):
    z, zt = logits(2, 6, 9), logits(3, 6, 9)
    ids = top_k_ids(zt, 4)
    p, q = z.softmax(-1).gather(-1, ids), zt.softmax(-1).gather(-1, ids)
    expected = [slow(form, a.tolist(), b.tolist(), remainder) for a, b in zip(p, q, strict=True)]
    torch.testing.assert_close(on(form, ids, z, zt, remainder=remainder), torch.tensor(expected, dtype=torch.float64))


@every_form
@every_remainder
def test_is_the_full_divergence_when_the_list_is_the_vocabulary(form, remainder):
    z, zt = logits(4, 5, 9), logits(5, 5, 9)
    ids = top_k_ids(zt, 9)
    torch.testing.assert_close(on(form, ids, z, zt, remainder=remainder), FULL[form](z, zt))
    full = gradient(lambda z: FULL[form](z, zt), z)
    torch.testing.assert_close(
        gradient(lambda z: on(form, ids, z, zt, remainder=remainder), z), full, atol=1e-6, rtol=0
    )


@every_form
@every_remainder
def test_the_order_of_the_list_does_not_matter(form, remainder):
    z, zt = logits(6, 9), logits(7, 9)
    ids = top_k_ids(zt, 5)
    torch.testing.assert_close(
        on(form, ids, z, zt, remainder=remainder), on(form, ids.flip(-1), z, zt, remainder=remainder)
    )


@every_form
@every_remainder
@pytest.mark.parametrize("k", [1, 3, 9])
def test_teacher_equal_to_student_gives_zero_and_no_gradient(form, remainder, k):
    z = logits(8, 4, 9)
    ids = top_k_ids(z, k)
    torch.testing.assert_close(on(form, ids, z, z.clone(), remainder=remainder), torch.zeros(4, dtype=torch.float64))
    g = gradient(lambda s: on(form, ids, s, z, remainder=remainder), z)
    torch.testing.assert_close(g, torch.zeros_like(g), atol=1e-9, rtol=0)


OF_ITS_VALUE = [(f, r) for f in FORMS for r in REMAINDERS if r != "stop_gradient" or f is support_jensen_shannon]


@pytest.mark.parametrize(("form", "remainder"), OF_ITS_VALUE)  # stop_gradient: deliberately not that of its value
def test_gradient_equals_finite_differences(form, remainder):
    zt = logits(10, 7)
    ids = top_k_ids(zt, 3)
    torch.autograd.gradcheck(lambda z: on(form, ids, z, zt, remainder=remainder), logits(9, 7).requires_grad_())


@every_form
def test_stop_gradient_and_generalized_have_one_gradient(form):
    z, zt = logits(11, 9), logits(12, 9)
    ids = top_k_ids(zt, 3)
    a, b = (gradient(lambda z, r=r: on(form, ids, z, zt, remainder=r), z) for r in ("generalized", "stop_gradient"))
    torch.testing.assert_close(a, b)


@every_form
@every_remainder
def test_a_descent_step_raises_the_token_the_teacher_prefers(form, remainder):
    zt = torch.tensor([2.0, 0.5, 0.0, 0.0], dtype=torch.float64)
    ids = torch.tensor([0, 1])
    g = gradient(lambda z: on(form, ids, z, zt, remainder=remainder), torch.zeros(4, dtype=torch.float64))
    assert g[0] < 0 < g[1]


@every_form
@every_remainder
@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_gradient_over_the_vocabulary_sums_to_zero_for_every_list(form, remainder, k):
    zt = logits(13, 9)
    g = gradient(lambda z: on(form, top_k_ids(zt, k), z, zt, remainder=remainder), logits(14, 9))
    assert abs(g.sum()) < 1e-12


def test_every_direct_form_points_along_the_full_reverse_kl():
    """Over 5 tokens: an estimator whose expected gradient is not along that of the full KL does not distil."""
    z, zt = logits(15, 200, 5), logits(16, 200, 5)
    full = gradient(lambda z: divergence.reverse_kl(z, zt), z)
    for remainder, k, at_least in [(r, 5, 0.99) for r in REMAINDERS] + [("tail", 4, 0.9), ("generalized", 4, 0.9)]:
        g = gradient(lambda z, r=remainder, k=k: on(support_reverse_kl, top_k_ids(zt, k), z, zt, remainder=r), z)
        assert torch.cosine_similarity(g, full, dim=-1).median() > at_least
