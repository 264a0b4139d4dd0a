import pytest
import torch

from codriver.errors import InputError
from codriver.models.presets import PRESETS
from codriver.models.tiny import CHARACTERS, SPECIAL, character_tokenizer, make_tiny

LLAMA_SIZES = {"llama-200k": 200_000, "llama-1m": 1_000_000, "llama-3m": 3_000_000}


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_makes_a_causal_model_that_gives_finite_logits_for_every_id(preset):
    model, tokenizer = make_tiny(preset, seed=0)
    logits = model(torch.arange(len(tokenizer))[None]).logits
    assert logits.shape == (1, len(tokenizer), len(tokenizer)) and torch.isfinite(logits).all()
    assert not model.training and model.dtype == torch.float32
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight


@pytest.mark.parametrize(("preset", "about"), LLAMA_SIZES.items())
def test_the_names_say_how_many_parameters_there_are(preset, about):
    model, _ = make_tiny(preset, seed=0)
    assert model.num_parameters() == pytest.approx(about, rel=0.1)


def test_the_seed_alone_decides_the_weights_and_the_global_state_goes_on_undisturbed():
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    first, _ = make_tiny("llama-200k", seed=0)
    assert torch.equal(torch.rand(3), expected)
    second, other = make_tiny("llama-200k", seed=0)[0], make_tiny("llama-200k", seed=1)[0]
    weights = [m.get_input_embeddings().weight for m in (first, second, other)]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])


def test_sizes_can_be_overridden():
    model, tokenizer = make_tiny("llama-200k", seed=0, hidden_size=32, num_layers=1, max_positions=50)
    config = model.config
    assert (config.hidden_size, config.num_hidden_layers, config.max_position_embeddings) == (32, 1, 50)
    assert tokenizer.model_max_length == 50


def test_gemma3_really_slides_its_window():
    model, _ = make_tiny("gemma3", seed=0)
    assert set(model.config.layer_types) == {"sliding_attention", "full_attention"}
    assert model.config.sliding_window < model.config.max_position_embeddings


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"preset": "llama-9b"}, "unknown preset, expected one of llama-200k"),
        ({"hidden_size": 100}, "multiple of 32, got 100"),
        ({"num_layers": 0}, "num_layers must be at least 1"),
        ({"max_positions": 1}, "max_positions at least 2"),
    ],
)
def test_what_cannot_be_made_is_refused(changes, message):
    with pytest.raises(InputError, match=message):
        make_tiny(**({"preset": "llama-200k", "seed": 0} | changes))


@pytest.mark.parametrize("text", [CHARACTERS, "", " ", "  a ,b .\n\n n't 's", "2 + 2 =  ?", "\n", "(a)[b]{c}"])
def test_text_comes_back_from_its_ids_exactly_one_id_per_character(text):
    tokenizer = character_tokenizer()
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text and len(ids) == len(text)


def test_other_characters_are_unknown_one_by_one():
    tokenizer = character_tokenizer()
    assert tokenizer.encode("aéü") == [tokenizer.encode("a")[0], tokenizer.unk_token_id, tokenizer.unk_token_id]


def test_special_tokens_have_the_first_ids():
    tokenizer = character_tokenizer()
    assert tokenizer.convert_tokens_to_ids(list(SPECIAL)) == [0, 1, 2, 3, 4]
    names = ("pad", "bos", "eos", "sep", "unk")
    assert [getattr(tokenizer, f"{name}_token_id") for name in names] == [0, 1, 2, 3, 4]
    assert len(tokenizer) == len(SPECIAL) + len(CHARACTERS) == 101


def test_the_model_knows_which_ids_are_special():
    model, _ = make_tiny("gpt2", seed=0)
    for settings in (model.config, model.generation_config):
        assert (settings.pad_token_id, settings.bos_token_id, settings.eos_token_id) == (0, 1, 2)
