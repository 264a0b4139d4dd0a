import itertools

import pytest
import torch

from codriver.signals.support import support_forward_kl
from codriver.signals.teacher_context import Selection, position_overlap, select_rollout, teacher_context_loss


def select(correct, overlap, **options):
    for name in ("hinted_correct_N", "hinted_overlap_N"):
        if options.get(name) is not None:
            options[name] = torch.tensor(options[name])
    return select_rollout(torch.tensor(correct), torch.tensor(overlap), **options)


def test_overlap_is_the_share_of_positions_where_the_teachers_token_is_on_the_students_list():
    ids = torch.tensor([[1, 2], [3, 4], [5, 6], [7, 8]])
    assert position_overlap(ids, torch.tensor([2, 3, 9, 9])) == 0.5
    assert position_overlap(ids, ids[:, 0]) == 1.0  # the teacher follows the student's first choices
    assert position_overlap(ids, torch.tensor([2])) == 1.0 and position_overlap(ids[:1], torch.tensor([2, 3, 4])) == 1.0
    assert position_overlap(ids, torch.tensor([], dtype=torch.int64)) == 0.0


def test_overlap_compares_the_same_position_only():
    assert position_overlap(torch.tensor([[1, 2], [3, 4]]), torch.tensor([3, 1])) == 0.0


def test_tiers_are_tried_in_order():
    hinted = {"hinted_correct_N": [False, True], "hinted_overlap_N": [0.9, 0.1]}
    assert select([False, True, True], [0.9, 0.3, 0.5], **hinted) == Selection(tier=1, index=2)
    assert select([False, False], [0.9, 0.3], **hinted) == Selection(tier=2, index=1)
    assert select([False, False], [0.3, 0.9]) == Selection(tier=3, index=1)
    nothing = {"hinted_correct_N": [False], "hinted_overlap_N": [1.0]}
    assert select([False, False], [0.3, 0.9], **nothing) == Selection(tier=3, index=1)
    assert select([False, False], [0.3, 0.9], take_incorrect=False, **nothing) is None


def test_ties_go_to_the_lowest_index_and_the_order_of_rollouts_does_not_matter():
    assert select([True, True, True], [0.5, 0.7, 0.7]) == Selection(tier=1, index=1)
    assert select([False, True], [0.7, 0.7]) == Selection(tier=1, index=1)  # a tie with an incorrect one is none
    overlap = [0.1, 0.4, 0.8, 0.6]
    correct = [True, True, False, True]
    for order in itertools.permutations(range(4)):
        chosen = select([correct[i] for i in order], [overlap[i] for i in order])
        assert order[chosen.index] == 3


def test_one_rollout_and_none():
    assert select([True], [0.0]) == Selection(tier=1, index=0)
    assert select_rollout(torch.zeros(0, dtype=torch.bool), torch.zeros(0)) is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(correct=[True], overlap=[0.1, 0.2]), "select_rollout: correct_N and overlap_N must have one shape"),
        (
            dict(correct=[False], overlap=[0.1], hinted_correct_N=[True]),
            "give hinted_correct_N and hinted_overlap_N together",
        ),
        (
            dict(correct=[False], overlap=[0.1], hinted_correct_N=[True], hinted_overlap_N=[0.1, 0.2]),
            "select_rollout: hinted_correct_N and hinted_overlap_N must have one shape",
        ),
    ],
)
def test_refuses_bad_input(arguments, message):
    with pytest.raises(ValueError, match=message):
        select(**arguments)


def test_the_loss_is_the_forward_kl_of_the_cut_teacher_to_the_whole_student():
    p, q = torch.tensor([[0.5, 0.25]]).log(), torch.tensor([[0.25, 0.25]]).log()
    slow = 0.5 * torch.tensor(0.5 / 0.5).log() + 0.5 * torch.tensor(0.5 / 0.25).log()
    torch.testing.assert_close(teacher_context_loss(p, q), slow[None])
    torch.testing.assert_close(
        teacher_context_loss(p, q), support_forward_kl(p, q, remainder="renormalize") - torch.tensor([0.75]).log()
    )


def test_its_gradient_raises_the_teachers_tokens_and_lowers_all_others():
    z = torch.zeros(1, 4, requires_grad=True)
    teacher_context_loss(z.log_softmax(-1)[:, :2], torch.tensor([[0.6, 0.3]]).log()).sum().backward()
    torch.testing.assert_close(z.grad, torch.tensor([[0.25 - 2 / 3, 0.25 - 1 / 3, 0.25, 0.25]]))
    with pytest.raises(ValueError, match="teacher_logp carries gradient"):
        teacher_context_loss(torch.zeros(1, 2), torch.zeros(1, 2, requires_grad=True))
