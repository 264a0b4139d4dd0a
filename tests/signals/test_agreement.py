import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from codriver.signals.agreement import (
    AgreementDetector,
    AgreementRule,
    WindowMinima,
    agreement_end,
    window_minimum,
    windowed_kl,
)


def reference(d, W, T, exempt, threshold):
    """Brute force, from the definition: (effective, generated)."""
    for t in range(len(d)):
        ends = range(t - T + 1, t + 1)  # T windows in a row, the last one ending at t
        if all(e >= W - 1 and e >= exempt and sum(d[e - W + 1 : e + 1]) / W < threshold for e in ends):
            return max(t - T + 1 - W + 1, exempt), t + 1
    return len(d), len(d)


def stream(d, rule, threshold):
    detector = AgreementDetector(rule, threshold=threshold)
    for t, kl in enumerate(d):
        if detector.step(kl):
            return detector.end, t + 1
    return len(d), len(d)


def test_the_windowed_kl_equals_numpys_convolution():
    d = torch.rand(3, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    z = windowed_kl(d, 7)
    assert (z[:, :6] == math.inf).all()
    for row, out in zip(d, z, strict=True):
        np.testing.assert_allclose(out[6:], np.convolve(row, np.ones(7) / 7, "valid"), atol=1e-12)


def test_a_rollout_shorter_than_a_window_has_no_window():
    assert (windowed_kl(torch.ones(2, 3), 4) == math.inf).all() and windowed_kl(torch.ones(2, 3), 4).shape == (2, 3)
    assert torch.equal(windowed_kl(torch.ones(3), 1), torch.ones(3))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("W", "T", "exempt"), [(1, 1, 0), (4, 2, 6), (8, 4, 0), (3, 1, 20), (5, 3, 2)])
def test_stream_batch_and_brute_force_agree_on_random_rollouts(seed, W, T, exempt):
    g = torch.Generator().manual_seed(seed)
    kl, length = torch.rand(30, 40, generator=g, dtype=torch.float64) ** 2, torch.randint(1, 41, (30,), generator=g)
    rule = AgreementRule(window=W, consecutive=T, exemption=exempt)
    effective, generated = agreement_end(kl, length, threshold=0.3, rule=rule)
    for i, n in enumerate(length.tolist()):
        expected = reference(kl[i, :n].tolist(), W, T, exempt, 0.3)
        assert stream(kl[i, :n].tolist(), rule, 0.3) == expected
        assert (int(effective[i]), int(generated[i])) == expected


def test_the_cut_is_at_the_start_of_the_first_low_window():
    d = [1.0] * 10 + [0.0] * 10
    assert stream(d, AgreementRule(window=4, consecutive=3), 0.3) == (9, 15)  # low windows end at 12, 13, 14
    assert stream(d, AgreementRule(window=4, consecutive=1), 0.3) == (9, 13)


def test_a_threshold_of_none_is_plain_distillation():
    kl, length = torch.zeros(2, 50), torch.tensor([50, 30])
    effective, generated = agreement_end(kl, length, threshold=None, rule=AgreementRule(window=4))
    assert torch.equal(effective, length) and torch.equal(generated, length)
    assert stream([0.0] * 50, AgreementRule(window=4), None) == (50, 50)


def test_a_teacher_equal_to_the_student_fires_right_after_the_exemption():
    assert stream([0.0] * 50, AgreementRule(window=4, consecutive=2, exemption=10), 1e-9) == (10, 12)


def test_padding_is_never_read():
    rule = AgreementRule(window=2, consecutive=2)
    kl = torch.tensor([[1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]])
    assert agreement_end(kl, torch.tensor([4]), threshold=0.4, rule=rule)[0].item() == 4
    kl[0, 4:] = float("nan")
    assert agreement_end(kl, torch.tensor([4]), threshold=0.4, rule=rule)[0].item() == 4
    assert window_minimum(kl, torch.tensor([4]), window=2).item() == 0.5


def test_the_detector_reports_the_lowest_window_even_of_exempt_tokens():
    d = torch.tensor([0.0, 0.0, 1.0, 1.0, 0.5])
    detector = AgreementDetector(AgreementRule(window=2, consecutive=9, exemption=3), threshold=0.1)
    for kl in d.tolist():
        detector.step(kl)
    assert detector.minimum == 0.0 == window_minimum(d[None], torch.tensor([5]), window=2).item()
    assert AgreementDetector(AgreementRule(window=2), threshold=0.1).minimum == math.inf


def test_a_large_spike_leaves_no_rounding_behind():
    detector = AgreementDetector(AgreementRule(window=2, consecutive=99), threshold=0.1)
    for kl in (1e16, 0.1, 0.2, 0.3):
        detector.step(kl)
    assert detector.minimum == pytest.approx(0.15, abs=1e-12)


def test_the_detector_resumes_from_its_state():
    d, rule = (
        torch.rand(60, generator=torch.Generator().manual_seed(1)).tolist(),
        AgreementRule(window=5, consecutive=2, exemption=3),
    )
    for cut in range(60):
        first, second = (AgreementDetector(rule, threshold=0.45) for _ in range(2))
        before = [first.step(kl) for kl in d[:cut]]
        second.load_state_dict(copy.deepcopy(first.state_dict()))
        after = [second.step(kl) for kl in d[cut:]]
        whole = AgreementDetector(rule, threshold=0.45)
        assert before + after == [whole.step(kl) for kl in d]
        assert (second.end, second.minimum, second.num_tokens) == (whole.end, whole.minimum, 60)


# ---- the threshold


def memory(values, **options):
    m = WindowMinima(**({"size": 100, "warmup_minima": 1, "warmup_steps": 0} | options))
    m.push(torch.tensor(values, dtype=torch.float64))
    return m


def test_the_threshold_is_the_quantile_of_the_latest_minima():
    values = torch.rand(50, generator=torch.Generator().manual_seed(2), dtype=torch.float64).tolist()
    m = memory(values, size=20)
    for eta in (0.0, 0.1, 0.3, 1.0):
        assert m.threshold(eta=eta, step=0) == pytest.approx(float(np.quantile(values[-20:], 1 - eta)))
    assert m.threshold(eta=1.0, step=0) == min(values[-20:]) and m.threshold(eta=0.0, step=0) == max(values[-20:])


def test_nothing_is_cut_during_warm_up():
    m = memory([1.0, 2.0], warmup_minima=3, warmup_steps=5)
    assert m.threshold(eta=0.3, step=9) is None
    m.push(torch.tensor([3.0]))
    assert m.threshold(eta=0.3, step=4) is None and m.threshold(eta=0.3, step=5) is not None


def test_rollouts_without_a_window_are_not_remembered():
    assert memory([math.inf, 1.0, math.inf]).state_dict() == {"values": [1.0]}


def test_the_memory_resumes_from_its_state():
    m, other = memory([1.0, 2.0, 3.0, 4.0], size=3), memory([9.0], size=3)
    other.load_state_dict(m.state_dict())
    for x in (m, other):
        x.push(torch.tensor([0.5]))
    assert other.state_dict() == m.state_dict() == {"values": [3.0, 4.0, 0.5]}


def test_a_threshold_fed_by_survivors_only_ratchets_up():
    """Why all rollouts must feed the memory, cut ones included."""
    g = torch.Generator().manual_seed(3)
    rule = AgreementRule(window=8, consecutive=2, exemption=8)
    thresholds = {}
    for survivors_only in (False, True):
        m = WindowMinima(size=256, warmup_minima=128, warmup_steps=0)
        m.push(window_minimum(torch.rand(256, 60, generator=g), torch.full((256,), 60), window=8))
        first = m.threshold(eta=0.5, step=0)
        for step in range(12):
            kl, length = torch.rand(128, 60, generator=g), torch.full((128,), 60)
            generated = agreement_end(kl, length, threshold=m.threshold(eta=0.5, step=step), rule=rule)[1]
            minima = window_minimum(kl, length, window=8)
            m.push(minima[generated == 60] if survivors_only else minima)
        thresholds[survivors_only] = m.threshold(eta=0.5, step=99) / first
    assert thresholds[True] > 1.03 and abs(thresholds[False] - 1) < 0.03


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: AgreementRule(window=0),
            "AgreementRule: expected window, consecutive >= 1 and exemption >= 0, got .*window=0",
        ),
        (lambda: AgreementRule(consecutive=0), "AgreementRule: expected"),
        (lambda: AgreementRule(exemption=-1), "AgreementRule: expected"),
        (lambda: windowed_kl(torch.ones(3), 0), "windowed_kl: the window must be >= 1, got 0"),
        (lambda: WindowMinima(size=10, warmup_minima=11), "expected 1 <= warmup_minima <= size, got 11 and 10"),
        (lambda: memory([1.0]).threshold(eta=1.1, step=0), r"eta must be in \[0, 1\], got 1.1"),
        (lambda: window_minimum(torch.ones(2, 3), torch.ones(3), window=1), r"window_minimum: .*got \(2,\) and \(3,\)"),
        (
            lambda: agreement_end(torch.ones(2, 3), torch.ones(3), threshold=1.0, rule=AgreementRule()),
            r"agreement_end: expected \[E, T\] and \[E\], got \(2, 3\) and \(3,\)",
        ),
    ],
)
def test_refuses_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.sampled_from([0.0, 0.25, 1.0]), min_size=1, max_size=30),
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(0, 12),
)
def test_cuts_are_between_the_exemption_and_what_was_generated(d, W, T, exempt):
    rule = AgreementRule(window=W, consecutive=T, exemption=exempt)
    end, generated = stream(d, rule, 0.3)
    assert (end, generated) == reference(d, W, T, exempt, 0.3)
    twin = agreement_end(torch.tensor([d], dtype=torch.float64), torch.tensor([len(d)]), threshold=0.3, rule=rule)
    assert (end, generated) == tuple(int(x) for x in twin)
    if generated < len(d):
        assert exempt <= end < generated
