"""Episodes of several turns: token-in, token-out, masks from who wrote, worlds that are slow or break."""

import time

import numpy as np
import pytest

from codriver.episode import Message
from codriver.errors import InputError
from codriver.models.render import decode_completion, render, render_answer, render_reply
from codriver.models.tiny import character_tokenizer
from codriver.rollout.play import Draw, play
from codriver.rollout.protocol import Sampling
from codriver.rollout.script import Turns
from codriver.rollout.written import written_dialogue
from tests.records import a_prompt
from tests.rollout.talk import HOSTILE, TEMPLATES, Counter, TalkingEngine, byte_tokenizer

STOP = 100


def reply(prompt, messages, is_ended):
    """9 closes a turn that nothing has closed, 7 7 is the observation."""
    return np.array([*([] if is_ended else [9]), 7, 7])


def a_talk(engine, *, count=1, samples=1, max_length=100, timeout_s=5.0, world=Counter):
    return play(
        engine,
        [Draw(prompt=a_prompt(i), group=f"0/{i}", samples=samples, seed=i) for i in range(count)],
        sampling=Sampling(max_tokens=5, temperature=0.7),
        render=lambda p: np.array([1, 5]),
        decode=lambda ids, stop: "".join(map(str, ids)),
        turns=Turns(environment=lambda p: world(), reply=reply, max_length=max_length, timeout_s=timeout_s),
    )


def test_three_turns_hold_the_sampled_ids_and_only_those_are_trainable():
    (episode,) = a_talk(TalkingEngine([[10, STOP], [11, 12, STOP], [13, STOP]]))
    assert episode.token_ids.tolist() == [1, 5, 10, STOP, 7, 7, 11, 12, STOP, 7, 7, 13, STOP]
    assert episode.turn.tolist() == [-1, -1, 0, 0, -1, -1, 1, 1, 1, -1, -1, 2, 2]
    assert (episode.trainable == (episode.turn >= 0)).all() and episode.num_sampled == 7
    assert episode.policy_version[episode.trainable].tolist() == [0, 0, 1, 1, 1, 2, 2]
    assert not episode.behaviour_logp[~episode.trainable].any()
    assert episode.completions == ("10100", "1112100", "13100") and episode.finish == "environment"
    assert [m.content for answer in episode.observations for m in answer] == ["1:10100", "2:1112100"]
    assert episode.facts == {"seen": 3} and episode.temperature == 0.7


def test_each_turns_prompt_begins_with_the_very_ids_of_the_turn_before():
    engine = TalkingEngine([[10, STOP], [11, STOP], [12, STOP]])
    a_talk(engine)
    prompts = [r.prompt_ids.tolist() for r in engine.asked]
    assert prompts[1] == [*prompts[0], 10, STOP, 7, 7] and prompts[2] == [*prompts[1], 11, STOP, 7, 7]
    assert len({r.seed for r in engine.asked}) == 3


def test_a_turn_cut_at_its_own_limit_is_closed_for_it_and_the_episode_goes_on():
    """The cap is of a turn: 3 turns of 5 are 15 trained tokens."""
    (episode,) = a_talk(TalkingEngine([[10] * 5], finish="length"))
    assert episode.num_sampled == 15 and episode.finish == "environment"
    assert episode.token_ids.tolist()[:10] == [1, 5, 10, 10, 10, 10, 10, 9, 7, 7]


def test_an_episode_without_room_for_another_token_ends_as_context():
    # 2 + 2 + 2 = 6 ids leave room for one at 7, none at 6.
    (fits,) = a_talk(TalkingEngine([[10, STOP]]), max_length=7)
    (full,) = a_talk(TalkingEngine([[10, STOP]]), max_length=6)
    assert (len(fits.completions), fits.finish) == (2, "context")
    assert (len(full.completions), full.finish, full.observations) == (1, "context", ())


def test_a_single_turn_samples_with_the_same_seed_with_and_without_turns():
    engines = [TalkingEngine([[10, STOP]]) for _ in range(2)]
    a_talk(engines[0], samples=2)
    play(
        engines[1],
        [Draw(prompt=a_prompt(0), group="0/0", samples=2, seed=0)],
        sampling=Sampling(max_tokens=5),
        render=lambda p: np.array([1, 5]),
        decode=lambda ids, stop: "",
    )
    assert [r.seed for r in engines[0].asked][:2] == [r.seed for r in engines[1].asked]


@pytest.mark.parametrize(
    ("world", "why"),
    [
        (lambda: Counter(fails_at=1), "OSError: the world broke"),
        (lambda: Counter(wait_s=5.0), "the environment gave no answer within 0.05 s"),
        (lambda: type("Rude", (Counter,), {"step": lambda self, text: None})(), "TypeError"),
    ],
)
def test_a_world_that_fails_ends_its_own_episode_with_the_reason(world, why):
    worlds = iter([world(), Counter(), Counter()])
    bad, *good = a_talk(TalkingEngine([[10, STOP]]), count=3, world=lambda: next(worlds), timeout_s=0.05)
    assert bad.finish == "error" and why in bad.facts["error"]
    assert [e.finish for e in good] == ["environment"] * 2


def test_slow_worlds_overlap():
    start = time.perf_counter()
    episodes = a_talk(TalkingEngine([[10, STOP]]), count=20, world=lambda: Counter(wait_s=0.05))
    assert all(e.finish == "environment" for e in episodes)
    assert time.perf_counter() - start < 20 * 4 * 0.05 / 3  # one after the other: 4 s


@pytest.mark.parametrize("role", ["user", "tool"])
@pytest.mark.parametrize("template", TEMPLATES)
def test_hostile_text_comes_back_as_the_sampled_ids_in_every_template(template, role):
    """Tokens in the loss are those that were sampled; the rest is what the template puts around them."""
    tokenizer = byte_tokenizer(TEMPLATES[template])
    stop = tokenizer.eos_token_id
    prompt = a_prompt(messages=(Message(role="user", content="hi"),))
    sampled = [[*tokenizer.encode(text[:3]), *tokenizer.encode(text[3:]), stop] for text in HOSTILE]
    (episode,) = play(
        TalkingEngine(sampled),
        [Draw(prompt=prompt, group="0/0", samples=1, seed=0)],
        sampling=Sampling(max_tokens=99),
        render=lambda p: render(tokenizer, p.messages),
        decode=lambda ids, stop_string: decode_completion(tokenizer, ids, stop_string=stop_string),
        turns=Turns(
            environment=lambda p: Counter(4, role=role),
            reply=lambda p, m, ended: render_reply(tokenizer, p.messages, m, stop_ids=[stop], is_ended=ended),
            max_length=10_000,
        ),
    )
    for turn, ids in enumerate(sampled):
        assert episode.token_ids[episode.turn == turn].tolist() == ids
    between = tokenizer.decode(episode.token_ids[episode.turn == -1])
    assert all(m.content in between for answer in episode.observations for m in answer)
    assert len(episode.token_ids) == sum(map(len, sampled)) + int((episode.turn == -1).sum())


def test_the_ids_around_completions_are_those_of_the_whole_conversation():
    tokenizer = byte_tokenizer(TEMPLATES["chatml"])
    stop = [tokenizer.eos_token_id]
    talk = (Message(role="user", content="hi"),)
    answer = (Message(role="tool", content="42"),)
    tools = ({"type": "function", "function": {"name": "calculator"}},)
    pieces = [
        render(tokenizer, talk, tools=tools),
        render_answer(tokenizer, talk, "calls it", stop_ids=stop, tools=tools),
        render_reply(tokenizer, talk, answer, stop_ids=stop, is_ended=True, tools=tools),
    ]
    whole = render(tokenizer, (*talk, Message(role="assistant", content="calls it"), *answer), tools=tools)
    assert np.concatenate(pieces).tolist() == whole.tolist() and "calculator" in tokenizer.decode(whole)


def test_a_template_without_tools_says_them_in_the_system_turn():
    tokenizer = character_tokenizer()
    ids = render(tokenizer, (Message(role="user", content="hi"),), tools=({"name": "look"},))
    assert '{"name": "look"}' in tokenizer.decode(ids) and tokenizer.decode(ids).endswith("hi<sep>")


def test_a_template_that_hides_the_answer_is_refused():
    tokenizer = byte_tokenizer("{% for m in messages if m.role == 'assistant' %}{{ m.content }}{% endfor %}")
    with pytest.raises(InputError, match="leaves out a turn"):
        render_reply(tokenizer, (Message(role="user", content="x"),), (Message(role="user", content="secret"),),
                     stop_ids=[2], is_ended=True)  # fmt: skip


def written(solutions=("ab", "c", "d"), max_length=100, whole_text=False, world=Counter):
    return written_dialogue(
        a_prompt(),
        "3/0",
        solutions,
        turns=Turns(environment=lambda p: world(), reply=reply, max_length=max_length),
        render=lambda p: np.array([1, 5]),
        write=lambda p, text: np.array([*map(ord, text), STOP]),
        whole_text=whole_text,
    )


def test_a_worked_episode_is_answered_by_its_world_and_trains_what_the_assistant_wrote():
    episode = written()
    assert episode.token_ids.tolist() == [1, 5, 97, 98, STOP, 7, 7, 99, STOP, 7, 7, 100, STOP]
    assert episode.trainable.tolist() == [t >= 0 for t in [-1, -1, 0, 0, 0, -1, -1, 1, 1, -1, -1, 2, 2]]
    assert (episode.author, episode.finish, episode.completions) == ("dataset", "environment", ("ab", "c", "d"))
    assert written(whole_text=True).trainable.tolist() == [False] + [True] * 12


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(solutions=()), "writes no turns"),
        (dict(solutions=("a",)), "writes 1 turns, but after 1 the episode goes on"),
        (dict(solutions=tuple("abcd")), "writes 4 turns, but after 3 the episode is over"),
        (dict(max_length=6), "after 1 the episode is over .context"),
    ],
)
def test_worked_turns_that_do_not_fit_their_world_are_refused(changes, message):
    with pytest.raises(InputError, match=f"arithmetic/train/0.*{message}"):
        written(**changes)
