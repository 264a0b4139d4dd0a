"""The engine against a plain full forward, and its promises about seeds, slots, ends, versions and the model it borrows."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from codriver.errors import InputError
from codriver.rollout.draw import UNIFORM_BLOCK
from tests.rollout.engines import MODELS, V, build, crowd, engine, finish, full_logp, request


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.15)])
def test_log_probs_equal_those_of_a_plain_full_forward(name, dtype, tolerance):
    # bfloat16 keeps 8 bits: logits of a few nats differ by a few hundredths between two orders of summation.
    model = build(name, dtype)
    requests = crowd(9, temperature=0.8)
    done = finish(engine(model, prefill_tokens=20), requests)
    for asked in requests:
        got = done[asked.id]
        assert len(got.token_ids) == asked.sampling.max_tokens and got.finish == "length"
        expected = full_logp(model, asked, got).gather(-1, torch.tensor(got.token_ids)[:, None])[:, 0]
        np.testing.assert_allclose(got.logp, expected.numpy(), atol=tolerance)
        assert (got.kept_logp == 0.0).all()


@pytest.mark.parametrize("name", MODELS)
def test_greedy_tokens_equal_the_argmax_of_a_plain_full_forward(name):
    model, requests = build(name), crowd(6, temperature=0.0)
    done = finish(engine(model), requests)
    for asked in requests:
        got = done[asked.id]
        assert full_logp(model, asked, got).argmax(-1).tolist() == got.token_ids.tolist()


def test_truncated_log_probs_and_kept_mass_add_up_to_the_full_log_prob():
    model = build()
    requests = [
        request(n, seed=n, temperature=0.7, **t)
        for n, t in enumerate([{"top_k": 5}, {"top_p": 0.8}, {"min_p": 0.1}, {}])
    ]
    for name, got in finish(engine(model), requests).items():
        whole = full_logp(model, requests[int(name)], got).gather(-1, torch.tensor(got.token_ids)[:, None])[:, 0]
        np.testing.assert_allclose(got.logp + got.kept_logp, whole.numpy(), atol=1e-4)
        assert (got.kept_logp < 0).any() == (name != "3")


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2"])
def test_the_same_seed_gives_the_same_tokens_alone_and_in_any_crowd_and_slot(name):
    model, requests = build(name), crowd(12, top_p=0.95)
    together = finish(engine(model, max_slots=5, max_length=UNIFORM_BLOCK), requests)
    backwards = finish(engine(model, max_slots=3), requests[::-1])
    for asked in requests:
        alone = finish(engine(model, max_slots=1), [asked])[asked.id]
        assert (
            alone.token_ids.tolist() == together[asked.id].token_ids.tolist() == backwards[asked.id].token_ids.tolist()
        )
        np.testing.assert_allclose(alone.logp, together[asked.id].logp, atol=1e-4)
    assert len({tuple(finish(engine(model), [request(0, seed=s)])["0"].token_ids) for s in range(4)}) == 4


def test_a_long_completion_never_reuses_its_uniforms():
    # A head of zeros draws uniformly: equal uniforms would give equal tokens block after block.
    model = build()
    torch.nn.init.zeros_(model.lm_head.weight)
    got = finish(engine(model, max_length=512, max_slots=1), [request(0, max_tokens=2 * UNIFORM_BLOCK - 5)])["0"]
    first, second = got.token_ids[: UNIFORM_BLOCK - 5], got.token_ids[UNIFORM_BLOCK:]
    assert (first == second).mean() < 0.15
    assert np.bincount(got.token_ids, minlength=V).min() > 0


def letters(ids: Sequence[int]) -> str:
    return "".join(f"{i:02d}" for i in ids)


def test_a_stop_string_across_token_borders_ends_a_completion():
    model = build()
    free = finish(engine(model), [request(0)])["0"].token_ids.tolist()
    string = letters(free)[9:13]  # the second half of token 4, token 5, the first half of token 6
    end = (letters(free).index(string) + 4 + 1) // 2
    requests = [request(0, stop_strings=("zz", string)), request(1)]
    got = finish(engine(model, decode=letters), requests)
    assert got["0"].finish == "stop" and got["0"].stop_string == string and got["0"].token_ids.tolist() == free[:end]
    assert got["1"].finish == "length" and got["1"].stop_string == ""


def test_length_and_context_are_told_apart():
    done = finish(
        engine(build(), max_length=10),
        [request("long", [1] * 4, max_tokens=99), request("short", [1] * 4, max_tokens=6)],
    )
    assert {n: (c.finish, len(c.token_ids)) for n, c in done.items()} == {
        "long": ("context", 6),
        "short": ("length", 6),
    }
    tight = finish(engine(build(), max_length=10), [request(0, [1] * 9)])["0"]
    assert (tight.finish, len(tight.token_ids)) == ("context", 1)


def test_a_monitor_sees_every_new_token_once_and_cuts_what_it_names():
    seen: dict[str, list[int]] = {}

    def monitor(live):
        for one in live:
            before = seen.setdefault(one.id, [])
            assert one.token_ids[: len(before)].tolist() == before and one.num_new == len(one.token_ids) - len(before)
            seen[one.id] = one.token_ids.tolist()
        return {one.id: 2 for one in live if one.id == "1" and len(one.token_ids) >= 6}

    model = build()
    done = finish(
        engine(model, monitor=monitor, monitor_every=3), [request(n, seed=n, max_tokens=10) for n in range(3)]
    )
    free = finish(engine(model), [request(1, seed=1, max_tokens=10)])["1"].token_ids
    assert done["1"].finish == "cut" and done["1"].token_ids.tolist() == free[:2].tolist() and len(done["1"].logp) == 2
    assert done["0"].finish == "length" and len(seen["0"]) == 9 and len(seen["1"]) == 6


@pytest.mark.parametrize("keep", [{"0": 0}, {"0": 99}, {"stranger": 1}])
def test_a_monitor_that_asks_for_the_impossible_is_told(keep):
    running = engine(build(), monitor=lambda live: keep, monitor_every=1)
    running.submit([request(0)])
    with pytest.raises(ValueError, match="monitor: must keep 1 or more tokens of a completion it was shown"):
        running.step()


def test_logits_that_are_not_finite_end_that_completion_only_and_do_not_poison_its_slot():
    model, poison = build(), 7
    # The long neighbour makes attention read the slot's stale positions, masked: 0 x NaN would be NaN.
    fine = [request(1, [5, 6, 8] * 8, seed=1, max_tokens=8), request(2, [1, 2, 3, 4], seed=2, max_tokens=8)]
    clean = finish(engine(model, max_slots=2), fine)
    assert poison not in [*clean["1"].token_ids, *clean["2"].token_ids]
    with torch.no_grad():
        model.model.embed_tokens.weight[poison] = float("nan")
    done = finish(engine(model, max_slots=2), [request(0, [poison] * 20), *fine])
    assert done["0"].finish == "error" and len(done["0"].token_ids) == len(done["0"].logp) == 0
    for name in ("1", "2"):
        assert done[name].finish == "length" and done[name].token_ids.tolist() == clean[name].token_ids.tolist()


def test_a_completion_that_breaks_later_keeps_the_tokens_before():
    model = build()
    free = finish(engine(model), [request(0)])["0"].token_ids.tolist()
    with torch.no_grad():
        model.model.embed_tokens.weight[free[5]] = float("nan")
    got = finish(engine(model), [request(0)])["0"]
    assert (
        got.finish == "error"
        and got.token_ids.tolist() == free[: free.index(free[5]) + 1]
        and np.isfinite(got.logp).all()
    )


def test_every_token_carries_the_version_that_sampled_it():
    model = build()
    running = engine(model, max_slots=1)
    running.publish(4)
    running.submit([request(0, max_tokens=6), request(1, max_tokens=2)])
    for _ in range(2):
        running.step()
    running.publish(5)
    done = finish(running)
    assert running.version == 5
    assert done["0"].version.tolist() == [4, 4, 5, 5, 5, 5] and done["1"].version.tolist() == [5, 5]


def test_publish_drops_the_prompt_computed_with_the_older_weights():
    model = build()
    running, prompt = engine(model, max_slots=1), [4, 9, 2, 7]
    running.submit([request(0, prompt, max_tokens=3), request(1, prompt, seed=1)])
    running.step()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(0.9)
    running.publish(1)
    late = finish(running)["1"]
    expected = full_logp(model, request(1, prompt), late).gather(-1, torch.tensor(late.token_ids)[:, None])[:, 0]
    np.testing.assert_allclose(late.logp, expected.numpy(), atol=1e-4)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_padding_rows_of_the_head_are_never_sampled_and_hold_no_mass(temperature):
    model = build()
    with torch.no_grad():
        model.lm_head.weight[30:] *= 50
    requests = [request(n, seed=n, max_tokens=30, temperature=temperature) for n in range(8)]
    for name, got in finish(engine(model, vocab_size=30), requests).items():
        assert got.token_ids.max() < 30
        ids = torch.tensor([1, 2, 3, *got.token_ids])
        with torch.no_grad():
            logp = torch.log_softmax(model(ids[None]).logits[0, 2:-1, :30].float(), -1)
        np.testing.assert_allclose(got.logp, logp.gather(-1, ids[3:, None])[:, 0].numpy(), atol=1e-4, err_msg=name)


def test_the_model_is_in_evaluation_mode_while_sampling_and_as_before_afterwards():
    model = build("gpt2").train()  # GPT-2 has dropout
    model.transformer.h[0].eval()
    modes = [module.training for module in model.modules()]
    seen: list[bool] = []
    model.register_forward_pre_hook(
        lambda *_: seen.append(any(m.training for m in model.modules()) or torch.is_grad_enabled())
    )
    got = finish(engine(model), [request(0)])["0"]
    assert not any(seen) and [module.training for module in model.modules()] == modes
    assert model.config._attn_implementation == "sdpa"
    expected = finish(engine(build("gpt2")), [request(0)])["0"]
    assert got.token_ids.tolist() == expected.token_ids.tolist()
    model(torch.tensor([[1, 2, 3]])).logits.sum().backward()  # no tensor of the engine's is left in the way


def test_the_model_is_given_back_when_a_forward_fails():
    model = build().train()
    running = engine(model)
    running.submit([request(0)])
    handle = model.register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        running.step()
    handle.remove()
    assert model.training and model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("attention", ["eager", "flex_attention"])
def test_models_loaded_with_another_attention_sample_the_same_tokens(attention):
    model = build("gemma3")
    expected = finish(engine(model), crowd(4))
    model.config._attn_implementation = attention
    got = finish(engine(model), crowd(4))
    assert {n: c.token_ids.tolist() for n, c in got.items()} == {n: c.token_ids.tolist() for n, c in expected.items()}
    assert model.config._attn_implementation == attention


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (
            request("e7", [1] * 64),
            "request e7: the prompt must be shorter than max_length 64 .* got 64 tokens; raise max_length",
        ),
        (request("e7", []), "request e7: prompt_ids must be"),
        (request("e7", [1, V]), rf"request e7: prompt ids must be in \[0, {V}\), got 1 to {V}"),
        (request("e7", stop_strings=("x",)), "request e7: stop_strings need an engine with decode"),
        (request("e1"), "request e1: ids must be unique"),
    ],
)
def test_a_bad_request_is_refused_with_its_id_and_nothing_is_queued(bad, words):
    running = engine(build())
    running.submit([request("e1")])
    with pytest.raises(InputError, match=words):
        running.submit([request("fine"), bad])
    assert running.num_pending == 1


@pytest.mark.parametrize(
    ("setting", "words"), [({"vocab_size": V + 1}, "vocab_size"), ({"max_length": 513}, "max_position_embeddings")]
)
def test_settings_beyond_the_model_are_refused(setting, words):
    with pytest.raises(InputError, match=words):
        engine(build(), **setting)


def test_sizes_below_one_are_refused():
    with pytest.raises(ValueError, match="must be at least 1, got {'max_slots': 0}"):
        engine(build(), max_slots=0)
