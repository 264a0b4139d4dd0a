"""Characters of a completion as tokens, for tokenizers of every kind."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from codriver.models.render import decode_completion
from codriver.models.tiny import character_tokenizer
from codriver.tasks.states import token_span
from tests.rollout.talk import CHATML, byte_tokenizer

BYTES = byte_tokenizer(CHATML)


def spans(tokenizer, text, start, stop):
    ids = np.array(tokenizer.encode(text))
    first, behind = token_span(ids, start, stop, lambda x, s: decode_completion(tokenizer, x, stop_string=s))
    return ids, first, behind


def test_one_token_per_character_is_the_identity():
    _, first, behind = spans(character_tokenizer(), "a=3;b=7;", 4, 7)
    assert (first, behind) == (4, 7)


def test_a_token_of_several_characters_belongs_to_every_span_that_touches_it():
    pieces = ["ab", "cd", "e"]

    def decode(ids, stop):
        return "".join(pieces[i] for i in ids)

    ids = np.arange(3)
    assert token_span(ids, 0, 1, decode) == (0, 1)
    assert token_span(ids, 1, 3, decode) == (0, 2)
    assert token_span(ids, 2, 4, decode) == (1, 2)
    assert token_span(ids, 4, 5, decode) == (2, 3)


def test_a_stop_token_without_text_belongs_to_no_span_before_it():
    pieces = ["a", "b", ""]
    assert token_span(np.arange(3), 1, 2, lambda ids, s: "".join(pieces[i] for i in ids)) == (1, 2)


@settings(max_examples=200, deadline=None)
@given(text=st.text(min_size=1, max_size=12).filter(lambda t: "\ufffd" not in t), data=st.data())
def test_the_span_holds_the_characters_and_is_the_shortest_that_does(text, data):
    """The slow way: try every pair of token bounds."""
    ids = np.array(BYTES.encode(text))
    whole = decode_completion(BYTES, ids)
    start = data.draw(st.integers(0, len(whole) - 1))
    stop = data.draw(st.integers(start + 1, len(whole)))
    _, first, behind = spans(BYTES, text, start, stop)
    lengths = [len(decode_completion(BYTES, ids[:k]).rstrip("\ufffd")) for k in range(len(ids) + 1)]
    assert lengths[first] <= start and lengths[behind] >= stop
    assert behind == min(k for k, n in enumerate(lengths) if n >= stop)
    assert first == min(k for k, n in enumerate(lengths) if n >= start + 1) - 1
