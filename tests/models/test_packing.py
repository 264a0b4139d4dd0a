import numpy as np
import pytest

from codriver.models.packing import TokenSequence, pack, partition


def sequence(length: int, start: int, seed: int = 0) -> TokenSequence:
    ids = np.random.default_rng(seed).integers(1, 50, length)
    return TokenSequence(ids=ids, chosen=np.arange(start, length))


def cost(groups, lengths, overhead):
    return sum(max(lengths[i] for i in g) * len(g) + overhead for g in groups)


def every_partition(items):
    if not items:
        yield []
        return
    for cut in range(1, len(items) + 1):
        for rest in every_partition(items[cut:]):
            yield [items[:cut], *rest]


@pytest.mark.parametrize("seed", range(5))
def test_partition_costs_as_little_as_the_best_of_all_partitions(seed):
    lengths = np.random.default_rng(seed).integers(1, 60, 9).tolist()
    order = sorted(range(9), key=lambda i: lengths[i])
    best = min(cost(g, lengths, 20) for g in every_partition(order))
    assert cost(partition(lengths, max_tokens=10_000, overhead=20), lengths, 20) == best


def test_no_group_exceeds_the_budget_unless_one_sequence_does():
    groups = partition([10, 10, 10, 300, 10], max_tokens=25, overhead=0)
    assert sorted(map(len, groups)) == [1, 2, 2] and sorted(i for g in groups for i in g) == [0, 1, 2, 3, 4]


def test_each_chosen_token_is_predicted_by_the_position_before_it():
    (batch,) = pack([sequence(7, 3), sequence(5, 1, seed=1)], max_tokens=1000)
    flat = batch.ids_BL.flatten()
    firsts = [sequence(7, 3).ids, sequence(5, 1, seed=1).ids]
    at = 0
    for member, n in zip(batch.members, batch.counts, strict=True):
        ids, chosen = firsts[member], [sequence(7, 3), sequence(5, 1, seed=1)][member].chosen
        assert flat[batch.rows_N[at : at + n]].tolist() == ids[chosen - 1].tolist()
        assert batch.targets_N[at : at + n].tolist() == ids[chosen].tolist()
        at += n


def test_a_sequence_without_chosen_tokens_is_not_computed():
    batches = pack([sequence(7, 7), sequence(5, 2)], max_tokens=1000)
    assert [b.members for b in batches] == [(1,)]


@pytest.mark.parametrize("start", [0, -1])
def test_the_first_token_cannot_be_scored(start):
    with pytest.raises(ValueError, match=r"chosen positions of sequence 0 must lie in 1\.\.6"):
        pack([TokenSequence(ids=np.arange(7), chosen=np.array([start, 3]))], max_tokens=100)


def test_padding_is_little_when_lengths_are_ragged():
    random = np.random.default_rng(0)
    lengths = random.integers(8, 1000, 200)
    batches = pack([sequence(int(n), 1) for n in lengths], max_tokens=16384)
    assert sum(b.num_padding for b in batches) < 0.1 * lengths.sum()
