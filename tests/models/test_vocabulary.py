import pytest

from codriver.errors import InputError
from codriver.models.tiny import character_tokenizer
from codriver.models.vocabulary import real_vocab_size, require_same_vocabulary, special_token_differences


class Words:
    """As much of a tokenizer as this room looks at."""

    def __init__(self, vocabulary: dict[str, int], **special: str) -> None:
        self._vocabulary = vocabulary
        for name in ("eos", "bos", "pad"):
            token = special.get(name)
            setattr(self, f"{name}_token", token)
            setattr(self, f"{name}_token_id", vocabulary[token] if token else None)

    def get_vocab(self) -> dict[str, int]:
        return dict(self._vocabulary)


ABC = {"a": 0, "b": 1, "c": 2}


def test_equal_vocabularies_share_all_their_ids():
    assert require_same_vocabulary(character_tokenizer(), character_tokenizer(), teacher_name="t") == 101


def test_the_shared_size_counts_holes_and_added_tokens():
    holed = ABC | {"<added>": 7}
    assert require_same_vocabulary(Words(holed), Words(holed), teacher_name="t") == real_vocab_size(Words(holed)) == 8


def test_added_tokens_of_a_real_tokenizer_count():
    student, teacher = character_tokenizer(), character_tokenizer()
    for tokenizer in (student, teacher):
        tokenizer.add_tokens(["<tool>"])
    assert require_same_vocabulary(student, teacher, teacher_name="t") == 102


@pytest.mark.parametrize(
    ("teacher", "message"),
    [
        ({"a": 0, "x": 1, "y": 2}, r"teacher big: .* id 1 is 'b' for the student and 'x' for the teacher"),
        (ABC | {"d": 3}, r"id 3 is no token for the student and 'd' for the teacher \(3 and 4 tokens\)"),
        ({"a": 0, "c": 2}, r"id 1 is 'b' for the student and no token for the teacher"),
    ],
)
def test_the_first_differing_id_is_named_with_both_tokens(teacher, message):
    with pytest.raises(InputError, match=message):
        require_same_vocabulary(Words(ABC), Words(teacher), teacher_name="big")


def test_special_tokens_that_play_another_part_are_told():
    student, teacher = Words(ABC, eos="c", bos="a"), Words(ABC, eos="b", bos="a", pad="c")
    assert special_token_differences(student, teacher, teacher_name="big") == [
        "teacher big: its eos token is 'b' (id 1), the student's is 'c' (id 2)",
        "teacher big: its pad token is 'c' (id 2), the student's is no token (id None)",
    ]


def test_nothing_is_told_when_they_agree():
    assert special_token_differences(character_tokenizer(), character_tokenizer(), teacher_name="t") == []
