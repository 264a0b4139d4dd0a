import numpy as np
import pytest

from codriver.episode import Message
from codriver.errors import InputError
from codriver.models.render import decode_completion, render, render_with_hint
from codriver.models.tiny import character_tokenizer

QUESTION = (Message(role="user", content="2+2=?"),)
TALK = (
    Message(role="system", content="Be brief."),
    Message(role="user", content="2+2=?"),
    Message(role="assistant", content="4"),
    Message(role="user", content="  and 3+3?\n"),
)


@pytest.fixture
def tokenizer():
    return character_tokenizer()


def text(tokenizer, ids):
    return tokenizer.decode(ids.tolist())


def test_each_turn_ends_with_its_own_token(tokenizer):
    ids = render(tokenizer, TALK)
    assert text(tokenizer, ids) == "<bos>Be brief.<sep>2+2=?<sep>4<eos>  and 3+3?\n<sep>"
    assert ids.dtype == np.int64 and ids.ndim == 1


def test_tool_replies_are_turns_of_the_environment(tokenizer):
    ids = render(tokenizer, (*QUESTION, Message(role="assistant", content="run"), Message(role="tool", content="4")))
    assert text(tokenizer, ids) == "<bos>2+2=?<sep>run<eos>4<sep>"


def test_the_prompt_is_the_beginning_of_the_conversation_with_its_answer(tokenizer):
    prompt, whole = render(tokenizer, QUESTION), render(tokenizer, QUESTION, answer=" 4")
    np.testing.assert_array_equal(whole[: len(prompt)], prompt)
    assert text(tokenizer, whole[len(prompt) :]) == " 4<eos>"


def test_a_generation_prompt_is_asked_of_the_template_only_where_a_completion_follows(tokenizer):
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}>{% endif %}"
    )
    assert text(tokenizer, render(tokenizer, QUESTION)) == "2+2=?>"
    assert text(tokenizer, render(tokenizer, QUESTION, add_generation_prompt=False)) == "2+2=?"
    assert text(tokenizer, render(tokenizer, QUESTION, answer="4")) == "2+2=?4"
    assert text(tokenizer, render_with_hint(tokenizer, QUESTION, "4!", place="user")) == "2+2=?\n\n4!>"


@pytest.mark.parametrize(
    ("messages", "place", "expected"),
    [
        (QUESTION, "system", "<bos>It is 4.<sep>2+2=?<sep>"),
        (QUESTION, "user", "<bos>2+2=?\n\nIt is 4.<sep>"),
        (TALK, "system", "<bos>Be brief.\n\nIt is 4.<sep>2+2=?<sep>4<eos>  and 3+3?\n<sep>"),
        (TALK, "user", "<bos>Be brief.<sep>2+2=?<sep>4<eos>  and 3+3?\n\n\nIt is 4.<sep>"),
    ],
)
def test_a_hint_goes_where_it_is_told(tokenizer, messages, place, expected):
    assert text(tokenizer, render_with_hint(tokenizer, messages, "It is 4.", place=place)) == expected


@pytest.mark.parametrize("place", ["system", "user"])
def test_without_a_hint_the_teacher_sees_exactly_what_the_student_sees(tokenizer, place):
    np.testing.assert_array_equal(render_with_hint(tokenizer, TALK, "", place=place), render(tokenizer, TALK))


def test_a_hint_in_a_user_turn_needs_one(tokenizer):
    with pytest.raises(InputError, match="no user turn .* hint_place: system"):
        render_with_hint(tokenizer, TALK[:1], "hint", place="user")


def test_an_unknown_place_is_refused(tokenizer):
    with pytest.raises(ValueError, match="'system' or 'user', got 'end'"):
        render_with_hint(tokenizer, QUESTION, "hint", place="end")


def test_a_tokenizer_without_a_template_is_refused(tokenizer):
    tokenizer.chat_template = None
    with pytest.raises(InputError, match="no chat template; use an instruct model"):
        render(tokenizer, QUESTION)


def test_the_reason_of_a_template_that_refuses_is_told(tokenizer):
    tokenizer.chat_template = "{{ raise_exception('System role not supported') }}"
    with pytest.raises(InputError, match="roles system, user, assistant, user: System role not supported"):
        render(tokenizer, TALK)


@pytest.mark.parametrize(
    ("completion", "stop_string", "expected"),
    [
        ("4<eos>", "", "4"),
        (" 4 , .<eos>", "", " 4 , ."),
        ("4\nQ: more", "\nQ:", "4"),
        ("4 STOP 5 STOP 6", " STOP", "4"),
        ("4", "STOP", "4"),
        ("", "", ""),
    ],
)
@pytest.mark.parametrize("kind", [list, np.array])
def test_a_completion_is_its_text_up_to_the_stop_string(tokenizer, completion, stop_string, expected, kind):
    ids = kind(tokenizer.encode(completion))
    assert decode_completion(tokenizer, ids, stop_string=stop_string) == expected
