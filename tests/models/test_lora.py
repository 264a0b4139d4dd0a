import copy
import sys
from dataclasses import replace

import pytest
import torch

from codriver.errors import InputError
from codriver.models.load import load_policy, save_policy
from codriver.models.lora import adapter_disabled, add_lora, has_adapter, load_adapter, merged_copy, save_adapter
from codriver.models.presets import PRESETS
from codriver.models.tiny import make_tiny

IDS = torch.tensor([[1, 50, 60, 70, 3]])


def adapted(preset="llama-200k", *, trained=True, dtype=torch.float32, **changes):
    model = add_lora(make_tiny(preset, seed=0)[0].to(dtype), **({"rank": 4, "alpha": 8.0, "seed": 0} | changes))
    if trained:
        with torch.no_grad():
            for weight in adapter_of(model).values():
                weight += 0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
    return model


def adapter_of(model):
    return {name: weight for name, weight in model.named_parameters() if weight.requires_grad}


def logits(model):
    with torch.no_grad():
        return model(IDS).logits


@pytest.mark.parametrize("preset", PRESETS)
def test_a_new_adapter_changes_nothing_and_alone_can_learn(preset):
    model = adapted(preset, trained=False)
    assert torch.equal(logits(model), logits(make_tiny(preset, seed=0)[0]))
    assert has_adapter(model) and not model.training
    assert all("lora_" in name for name in adapter_of(model)) and adapter_of(model)


def test_all_linear_layers_but_the_head_are_adapted():
    layers = {name.split(".lora_")[0].rpartition(".")[2] for name in adapter_of(adapted())}
    assert layers == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


def test_target_modules_can_be_chosen():
    layers = {name.split(".lora_")[0].rpartition(".")[2] for name in adapter_of(adapted(target_modules=["q_proj"]))}
    assert layers == {"q_proj"}


def test_target_modules_that_are_not_there_are_refused():
    with pytest.raises(InputError, match="lora: .*nothing_proj"):
        adapted(target_modules=["nothing_proj"])


def test_the_seed_alone_decides_the_adapter():
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    first = adapter_of(adapted(trained=False))
    assert torch.equal(torch.rand(2), expected)
    second, other = adapter_of(adapted(trained=False)), adapter_of(adapted(trained=False, seed=1))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_the_adapter_of_a_bfloat16_model_is_float32():
    assert {weight.dtype for weight in adapter_of(adapted(dtype=torch.bfloat16)).values()} == {torch.float32}


def test_disabled_it_is_the_base_and_enabled_again_it_learns():
    model = adapted()
    before, base = logits(model), logits(make_tiny("llama-200k", seed=0)[0])
    trainable = set(adapter_of(model))
    with adapter_disabled(model):
        assert torch.equal(logits(model), base)
    assert torch.equal(logits(model), before) and not torch.equal(before, base)
    assert set(adapter_of(model)) == trainable


def test_a_model_without_an_adapter_has_none_to_disable():
    with pytest.raises(ValueError, match="expected a model from add_lora, got LlamaForCausalLM"):
        with adapter_disabled(make_tiny("llama-200k", seed=0)[0]):
            pass


@pytest.mark.parametrize("preset", PRESETS)
def test_the_merged_folder_is_an_ordinary_model_that_says_the_same(preset, tmp_path):
    policy = load_policy(f"tiny:{preset}")
    policy = replace(policy, model=adapted(preset))
    save_policy(policy, tmp_path, merge=True)
    loaded = load_policy(str(tmp_path))
    assert not has_adapter(loaded.model) and not (tmp_path / "adapter_config.json").exists()
    torch.testing.assert_close(logits(loaded.model), logits(policy.model), atol=1e-5, rtol=1e-5)
    assert loaded.stop_ids == policy.stop_ids


def test_a_hundred_merges_leave_a_bfloat16_base_and_the_adapter_bit_by_bit_as_they_were():
    model = adapted("qwen2", dtype=torch.bfloat16)
    before = copy.deepcopy(model.state_dict())
    for _ in range(100):
        merged = merged_copy(model)
    after = model.state_dict()
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    assert merged.dtype == torch.bfloat16


def test_a_merged_weight_is_base_plus_scaled_product():
    model = adapted()
    layer = model.get_base_model().model.layers[0].self_attn.q_proj
    a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    expected = layer.base_layer.weight + (8.0 / 4) * b @ a
    torch.testing.assert_close(merged_copy(model).model.layers[0].self_attn.q_proj.weight, expected)


def test_an_adapter_comes_back_bit_by_bit_and_stays_trainable(tmp_path):
    model = adapted()
    save_adapter(model, tmp_path)
    other = adapted(trained=False, seed=9)
    trainable = set(adapter_of(other))
    load_adapter(other, tmp_path)
    assert torch.equal(logits(other), logits(model)) and set(adapter_of(other)) == trainable


def test_a_checkpoint_holds_the_adapter_alone(tmp_path):
    save_policy(replace(load_policy("tiny:llama-200k"), model=adapted()), tmp_path)
    assert (tmp_path / "adapter_model.safetensors").exists() and not (tmp_path / "model.safetensors").exists()


def test_an_adapter_of_another_rank_is_refused(tmp_path):
    save_adapter(adapted(), tmp_path)
    with pytest.raises(
        InputError, match=r"first at .*lora_A.* \(\[4, 256\] saved, \[8, 256\] expected\); use the rank"
    ):
        load_adapter(adapted(rank=8), tmp_path)


def test_a_folder_without_an_adapter_is_refused(tmp_path):
    with pytest.raises(InputError, match="no adapter_model.safetensors"):
        load_adapter(adapted(), tmp_path)


def test_without_peft_the_way_to_get_it_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(InputError, match=r"pip install codriver\[peft\]"):
        adapted()
