import numpy as np
import pytest
import torch

from codriver.errors import InputError
from codriver.models.logprob_head import chosen_logp, hidden_states, output_head, require_known_head
from codriver.models.packing import TokenSequence, pack
from codriver.models.score import score_tokens


def sequences(count: int = 5) -> list[TokenSequence]:
    random = np.random.default_rng(0)
    lengths = random.integers(4, 20, count)
    return [TokenSequence(ids=random.integers(3, 23, n), chosen=np.arange(2, n)) for n in lengths]


def slow_scores(model, seq: TokenSequence, *, temperature: float, vocab: int):
    """The whole forward, one sequence at a time, one token at a time."""
    with torch.no_grad():
        logits = model(torch.from_numpy(seq.ids)[None]).logits[0, :, :vocab]
    out = []
    for t in seq.chosen:
        logp = (logits[t - 1] / temperature).log_softmax(-1)
        out.append((logp[seq.ids[t]].item(), -(logp.exp() * logp).sum().item()))
    return np.array(out)


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.3])
@pytest.mark.parametrize("max_tokens", [20, 1000])
def test_scores_equal_a_plain_forward(llama, temperature, max_tokens):
    model, seqs = llama(), sequences()
    scores = score_tokens(model, seqs, vocab_size=23, temperature=temperature, micro_batch_tokens=max_tokens)
    for seq, (logp, entropy, _) in zip(seqs, scores, strict=True):
        expected = slow_scores(model, seq, temperature=temperature, vocab=23)
        np.testing.assert_allclose(np.stack([logp, entropy], 1), expected, atol=1e-6)


def gradient(model, *, side="right", chunk=1000, pad_id=0, max_tokens=1000, order=1):
    model.zero_grad()
    total = 0.0
    for batch in pack(sequences()[::order], max_tokens=max_tokens, pad_id=pad_id, side=side):
        logp, _ = chosen_logp(hidden_states(model, batch), output_head(model, 23), batch.targets_N, chunk_rows=chunk)
        loss = (logp * logp.detach().cos()).sum()  # weights that differ from token to token
        loss.backward()
        total += loss.item()
    return total, torch.cat([p.grad.flatten() for p in model.parameters()])


@pytest.mark.parametrize(
    "how",
    [
        dict(side="left"),
        dict(chunk=1),
        dict(chunk=7),
        dict(pad_id=2),
        dict(side="left", pad_id=2),
        dict(max_tokens=1),
        dict(max_tokens=40),
        dict(order=-1),
    ],
    ids=str,
)
def test_loss_and_gradient_do_not_depend_on_how_the_batch_is_cut(llama, how):
    model = llama()
    loss, grad = gradient(model)
    other_loss, other_grad = gradient(model, **how)
    assert other_loss == pytest.approx(loss, abs=1e-6)
    torch.testing.assert_close(other_grad, grad, atol=1e-9, rtol=1e-6)


def test_no_tensor_of_all_tokens_by_the_vocabulary_is_made_in_either_pass():
    rows, vocab, chunk = 64, 500, 8
    hidden = torch.randn(rows, 4, requires_grad=True)
    weight = torch.randn(vocab, 4, requires_grad=True)
    seen = []

    class Spy(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            seen.extend(t.numel() for t in (out if isinstance(out, tuple) else (out,)) if isinstance(t, torch.Tensor))
            return out

    with Spy():
        logp, _ = chosen_logp(hidden, lambda h: h @ weight.T, torch.zeros(rows, dtype=torch.long), chunk_rows=chunk)
        logp.sum().backward()
    assert max(seen) <= chunk * vocab


def test_padding_rows_of_the_head_hold_no_probability(llama):
    model = llama(vocab_size=30)
    (batch,) = pack(sequences(1), max_tokens=100)
    hidden = hidden_states(model, batch).detach()
    logits = output_head(model, 23)(hidden)
    assert logits.shape[-1] == 23
    logp, _ = chosen_logp(hidden, output_head(model, 23), batch.targets_N)
    by_hand = model.lm_head(hidden)[:, :23].log_softmax(-1)
    torch.testing.assert_close(logp, by_hand.gather(-1, batch.targets_N[:, None])[:, 0])


def test_an_architecture_that_scales_its_logits_is_refused(llama):
    model = llama()
    plain = model.forward
    model.forward = lambda *a, **k: type("Out", (), {"logits": plain(*a, **k).logits * 2})()
    with pytest.raises(InputError, match="demo: logits of LlamaForCausalLM differ"):
        require_known_head(model, vocab_size=23, name="demo")


def test_bad_temperature_and_misaligned_targets_are_named():
    with pytest.raises(ValueError, match="temperature must be above 0, got 0"):
        chosen_logp(torch.zeros(2, 3), lambda h: h, torch.zeros(2, dtype=torch.long), temperature=0)
    with pytest.raises(ValueError, match="got 2 rows, 1 targets"):
        chosen_logp(torch.zeros(2, 3), lambda h: h, torch.zeros(1, dtype=torch.long))
