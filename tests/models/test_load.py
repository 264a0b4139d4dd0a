import importlib.util
import json
from dataclasses import replace
from types import SimpleNamespace

import gguf
import huggingface_hub.constants
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from codriver.errors import InputError
from codriver.models import load
from codriver.models.folder import check_folder
from codriver.models.load import UNBOUNDED_CONTEXT, convert_gguf, load_policy, save_policy
from codriver.models.presets import PRESETS
from codriver.models.tiny import CHARACTERS, make_tiny

IDS = torch.tensor([[1, 50, 60, 70, 3]])


def logits(model):
    with torch.no_grad():
        return model(IDS).logits


@pytest.fixture
def folder(tmp_path):
    save_policy(load_policy("tiny:llama-200k"), tmp_path / "model")
    return tmp_path / "model"


def edit(folder, file, **changes):
    values = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps(values | changes))


@pytest.mark.parametrize("preset", PRESETS)
def test_a_saved_policy_comes_back_bit_by_bit_after_training(preset, tmp_path):
    policy = load_policy(f"tiny:{preset}", seed=3)
    optimizer = torch.optim.SGD(policy.model.parameters(), lr=0.1)
    policy.model(IDS, labels=IDS).loss.backward()
    optimizer.step()
    save_policy(policy, tmp_path)
    loaded = load_policy(str(tmp_path))
    ours, theirs = policy.model.state_dict(), loaded.model.state_dict()
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert torch.equal(logits(policy.model), logits(loaded.model))
    assert replace(loaded, name="", model=None, tokenizer=None) == replace(policy, name="", model=None, tokenizer=None)


def test_what_is_saved_is_an_ordinary_folder(folder):
    policy, tokenizer = load_policy("tiny:llama-200k"), AutoTokenizer.from_pretrained(folder)
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(folder)), logits(policy.model))
    text = CHARACTERS + "  a ,b .\n\n"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.chat_template == policy.tokenizer.chat_template
    assert (folder / "model.safetensors").exists() and (folder / "generation_config.json").exists()
    assert not [name for name in load_file(folder / "model.safetensors") if "lm_head" in name]  # tied: written once


def test_a_tiny_policy_is_what_its_preset_says():
    policy = load_policy("tiny:llama-200k", seed=5)
    assert torch.equal(logits(policy.model), logits(make_tiny("llama-200k", seed=5)[0]))
    assert (policy.vocab_size, policy.context, policy.stop_ids) == (101, 1024, (2,))
    assert not policy.model.training and policy.model.config._attn_implementation == "sdpa"


def test_a_stage_is_the_folder_of_that_name(folder):
    assert load_policy("stage:sft", stages={"sft": folder}).name == "stage:sft"
    with pytest.raises(InputError, match="stage:rl: no such stage before this one, expected one of sft"):
        load_policy("stage:rl", stages={"sft": folder})


@pytest.mark.parametrize(
    ("dtype", "expected"), [("auto", torch.float32), ("float32", torch.float32), ("bfloat16", torch.bfloat16)]
)
def test_on_a_cpu_auto_is_float32_whatever_the_checkpoint_holds(tmp_path, dtype, expected):
    save_policy(load_policy("tiny:llama-200k", dtype="bfloat16"), tmp_path)
    assert load_file(tmp_path / "model.safetensors")["model.norm.weight"].dtype == torch.bfloat16
    assert {p.dtype for p in load_policy(str(tmp_path), dtype=dtype).model.parameters()} == {expected}
    assert load_policy("tiny:llama-200k", dtype=dtype).model.dtype == expected


def test_an_unknown_dtype_is_refused():
    with pytest.raises(InputError, match="dtype must be auto or one of float64, .*, got 'int8'"):
        load_policy("tiny:llama-200k", dtype="int8")


def test_every_id_that_ends_a_completion_counts_once(folder):
    edit(folder, "generation_config.json", eos_token_id=[7, 2])
    edit(folder, "config.json", eos_token_id=[7, 9, 5000])
    assert load_policy(str(folder)).stop_ids == (7, 2, 9)


def test_padding_rows_of_the_head_are_not_ids(tmp_path):
    policy = load_policy("tiny:llama-200k")
    policy.model.resize_token_embeddings(128, mean_resizing=False)
    save_policy(policy, tmp_path)
    loaded = load_policy(str(tmp_path))
    assert len(loaded.model.get_output_embeddings().weight) == 128 and loaded.vocab_size == 101


def test_an_added_token_without_a_row_is_no_id_but_a_foreign_tokenizer_is_refused(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["<image>"])
    tokenizer.save_pretrained(folder)
    assert load_policy(str(folder)).vocab_size == 101  # as in Gemma's text models
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.resize_token_embeddings(90, mean_resizing=False)
    model.save_pretrained(folder)
    with pytest.raises(InputError, match="its tokenizer knows id 90 .* only 90 rows"):
        load_policy(str(folder))


def test_a_model_without_a_limit_has_a_very_large_context():
    policy = load_policy("tiny:llama-200k")
    policy.model.config = SimpleNamespace(get_text_config=lambda decoder: SimpleNamespace(eos_token_id=None))
    assert load._policy("x", policy.model, policy.tokenizer).context == UNBOUNDED_CONTEXT


def test_settings_that_transformers_loads_but_does_not_save_are_no_obstacle(tmp_path):
    policy = load_policy("tiny:llama-200k")
    policy.model.generation_config.temperature = 0.7
    save_policy(policy, tmp_path)
    assert json.loads((tmp_path / "generation_config.json").read_text())["temperature"] == 0.7
    assert not policy.model.generation_config.do_sample  # the live model is as it was


def test_a_whole_folder_has_no_problems(folder):
    assert check_folder(folder) == []


@pytest.mark.parametrize(
    ("file", "message"),
    [("config.json", "no config.json"), ("model.safetensors", "no weights"), ("tokenizer", "no tokenizer")],
)
def test_what_a_folder_lacks_is_named(folder, file, message):
    for path in folder.glob(f"{file}*"):
        path.unlink()
    [found] = check_folder(folder)
    assert found.startswith(f"{folder}: {message}")
    with pytest.raises(InputError, match=message):
        load_policy(str(folder))


def test_all_that_an_empty_folder_lacks_is_told_at_once(tmp_path):
    assert len(check_folder(tmp_path)) == 3
    assert check_folder(tmp_path / "none") == [
        f"{tmp_path}/none: no such folder; correct the path (relative to where you run)"
    ]


def test_an_adapter_is_not_taken_for_a_model(folder):
    (folder / "config.json").rename(folder / "adapter_config.json")
    assert "this is an adapter" in check_folder(folder)[0]


def test_a_missing_shard_is_named(folder):
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "model-2.safetensors"}}))
    assert "lacks model-2.safetensors" in check_folder(folder)[0]


def test_weights_that_are_not_there_are_not_replaced_by_random_ones(folder):
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.0.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match="lack 1 tensors .* such as model.layers.0.mlp.up_proj.weight"):
        load_policy(str(folder))


@pytest.mark.parametrize("content", [b"{ not json", b"{}"])
@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_damaged_file_is_an_input_error_with_the_path(folder, file, content):
    (folder / file).write_bytes(content)
    with pytest.raises(InputError, match=str(folder)):
        load_policy(str(folder))


def test_an_architecture_that_nobody_knows_is_refused(folder):
    edit(folder, "config.json", model_type="mystery")
    with pytest.raises(InputError, match="mystery"):
        load_policy(str(folder))


def test_a_hub_id_without_a_network_says_what_to_do(monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(
        InputError, match="nobody/nothing: no such folder here, and not to be had from the hub .*hf download"
    ):
        load_policy("nobody/nothing")


def test_a_path_that_is_not_there_is_not_looked_for_on_the_hub():
    with pytest.raises(InputError, match="^models/none: no such folder; correct the path"):
        load_policy("./models/none")


# GGUF


def write_gguf(file, *, seed=0):
    """`tiny:llama-200k` as llama.cpp would store it, with a byte-level tokenizer of the same size."""
    model, _ = make_tiny("llama-200k", seed=seed, num_layers=1)
    config, weights = model.config, {name: w.detach().numpy() for name, w in model.state_dict().items()}
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_context_length(config.max_position_embeddings), writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(1), writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads), writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps), writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config.vocab_size)
    tokens = ["<pad>", "<bos>", "<eos>", "<sep>", "<unk>", "\u010a", "\u0120", *map(chr, range(33, 126)), "ab"]
    writer.add_tokenizer_model("gpt2"), writer.add_token_list(tokens), writer.add_token_merges(["a b"])
    writer.add_token_types([3] * 5 + [1] * (len(tokens) - 5))
    writer.add_eos_token_id(2)
    writer.add_chat_template("{{ messages[0]['content'] }}")

    def permuted(weight):  # llama.cpp interleaves the two halves of each head
        heads = config.num_attention_heads
        return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)

    names = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
             "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
             "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}  # fmt: skip
    writer.add_tensor("token_embd.weight", weights["model.embed_tokens.weight"])
    writer.add_tensor("output_norm.weight", weights["model.norm.weight"])
    for theirs, ours in names.items():
        weight = weights[f"model.layers.0.{ours}.weight"]
        weight = permuted(weight) if theirs in ("attn_q", "attn_k") else weight
        writer.add_tensor(f"blk.0.{theirs}.weight", np.ascontiguousarray(weight))
    writer.write_header_to_file(), writer.write_kv_data_to_file(), writer.write_tensors_to_file(), writer.close()
    return model


def test_a_gguf_file_is_loaded_through_a_folder_that_is_made_once(tmp_path):
    file = tmp_path / "model.gguf"
    model = write_gguf(file)
    policy = load_policy(str(file))
    torch.testing.assert_close(logits(policy.model), logits(model), atol=1e-6, rtol=1e-5)
    assert (policy.stop_ids, policy.tokenizer.chat_template) == ((2,), "{{ messages[0]['content'] }}")
    made = (tmp_path / "model.gguf.hf" / "model.safetensors").stat()
    assert torch.equal(logits(load_policy(str(file)).model), logits(policy.model))
    assert (tmp_path / "model.gguf.hf" / "model.safetensors").stat() == made
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.gguf", "model.gguf.hf"]


@pytest.fixture
def fake_file(tmp_path, monkeypatch):
    """A file whose conversion gives a tiny model, and a list of the conversions."""
    file, conversions = tmp_path / "model.gguf", []
    file.write_bytes(b"GGUF")

    def convert(source, name, dtype, *, gguf_file):
        conversions.append(gguf_file)
        return make_tiny("llama-200k", seed=0)

    monkeypatch.setattr(load, "_load", convert)
    return file, conversions


def test_a_changed_gguf_file_is_converted_again(fake_file):
    file, conversions = fake_file
    convert_gguf(file), convert_gguf(file)
    assert len(conversions) == 1
    file.write_bytes(b"GGUF, longer")
    assert check_folder(convert_gguf(file)) == [] and len(conversions) == 2


def test_the_converted_folder_can_lie_elsewhere(fake_file, tmp_path):
    folder = convert_gguf(fake_file[0], cache=tmp_path / "cache")
    assert folder == tmp_path / "cache" / "model.gguf.hf" and check_folder(folder) == []


def test_a_conversion_that_breaks_off_leaves_nothing(fake_file, tmp_path, monkeypatch):
    def full_disk(model, folder):
        (folder / "model.safetensors").write_bytes(b"half")
        raise OSError("No space left on device")

    monkeypatch.setattr(load, "_save_model", full_disk)
    with pytest.raises(OSError, match="No space left"):
        convert_gguf(fake_file[0])
    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"]


def test_a_file_that_is_not_gguf_is_refused_and_leaves_nothing(tmp_path):
    (tmp_path / "x.gguf").write_bytes(b"not a model at all")
    with pytest.raises(InputError, match="x.gguf: cannot be loaded"):
        load_policy(str(tmp_path / "x.gguf"))
    assert [path.name for path in tmp_path.iterdir()] == ["x.gguf"]
    with pytest.raises(InputError, match="y.gguf: no such file"):
        load_policy(str(tmp_path / "y.gguf"))


def test_without_the_package_gguf_the_way_to_get_it_is_told(fake_file, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install codriver\[gguf\]"):
        convert_gguf(fake_file[0])
