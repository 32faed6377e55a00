"""What this engine does not serve is refused by name; nothing leaks when something fails."""

from __future__ import annotations

import gc

import pytest

transformers = pytest.importorskip("transformers", minversion="4.56")
import torch  # noqa: E402

from deepseek_flash_cache.engines.transformers import FlashCache, cache_argument, model_pool  # noqa: E402
from deepseek_flash_cache.pool import PoolExhausted  # noqa: E402

from .conftest import generate, prompts, tiny_model  # noqa: E402


@pytest.mark.parametrize("name", ["t5", "mamba", "gpt2", "llama4_text", "deepseek_v3"])
def test_models_that_are_not_served_are_named(name):
    with pytest.raises(ValueError, match=f"model_type: '{name}' is not served.*llama"):
        FlashCache(transformers.AutoConfig.for_model(name))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_foreign_attention_function_cannot_answer_from_a_part_of_the_keys(attention):
    model = tiny_model("llama")
    model.set_attn_implementation(attention)
    cache = FlashCache(model.config)
    with pytest.raises(ValueError, match="set_attn_implementation\\('dfc'\\)"):
        model.generate(**prompts(), max_new_tokens=2, **cache_argument(model, cache))


def test_d18_dfc_without_our_cache_is_an_ordinary_forward():
    """transformers PR 48735: a paged implementation leaked into `model(x)` without a cache."""
    for name in ("llama", "mistral", "gemma2", "gpt_oss"):
        model, inputs = tiny_model(name), prompts()
        mask = inputs["attention_mask"].bool()
        with torch.no_grad():
            expected = model(**inputs).logits
            tokens = generate(model, inputs)
            model.set_attn_implementation("dfc")
            assert torch.allclose(model(**inputs).logits[mask], expected[mask], atol=2e-4)
            assert torch.equal(model.generate(**inputs, max_new_tokens=40, do_sample=False), tokens)


def test_training_custom_masks_and_dropout_are_refused():
    model, inputs = tiny_model("llama"), prompts((9,))
    model.set_attn_implementation("dfc")
    with pytest.raises(ValueError, match="inference"):
        model(**inputs)
    with torch.no_grad(), pytest.raises(ValueError, match="attention_mask: shape"):
        model(inputs["input_ids"], attention_mask=torch.ones(1, 1, 9, 9))


def test_a_mask_that_contradicts_the_cache_is_refused():
    model, inputs = tiny_model("llama"), prompts((9, 4))
    model.set_attn_implementation("dfc")
    with FlashCache(model.config) as cache, torch.no_grad():
        model(**inputs, **cache_argument(model, cache))
        token, mask = torch.ones(2, 1, dtype=torch.long), torch.ones(2, 10, dtype=torch.long)
        with pytest.raises(ValueError, match="already in the cache changed"):
            model(token, attention_mask=mask, **cache_argument(model, cache))


def test_an_exhausted_pool_says_what_is_missing_and_keeps_nothing():
    model, inputs = tiny_model("llama"), prompts((33, 5, 70))
    pool = model_pool(model, num_blocks=4)
    cache = FlashCache(model.config, pool)
    with pytest.raises(PoolExhausted, match=r"\d+ block.*\d+"):
        generate(model, inputs, cache)
    pool.blocks.check_idle()
    assert torch.equal(generate(model, prompts((33,)), cache), generate(model, prompts((33,))))  # another batch size
    cache.free()
    pool.blocks.check_idle()
    with FlashCache(model.config, pool) as cache:  # the next request runs
        assert torch.equal(generate(model, prompts((33,)), cache), generate(model, prompts((33,))))


def test_a_forgotten_cache_gives_its_blocks_back():
    model = tiny_model("llama")
    pool = model_pool(model, num_blocks=16)
    cache = FlashCache(model.config, pool)
    generate(model, prompts((33,)), cache)
    assert pool.blocks.num_used > 0
    del cache
    gc.collect()
    pool.blocks.check_idle()


def test_other_weights_never_hit_each_others_blocks():
    """vLLM 42125: weights reloaded under the same name must miss."""
    first, second = tiny_model("llama"), tiny_model("llama")
    with torch.no_grad():
        second.model.embed_tokens.weight[5, 0] += 1
    digests = {model_pool(model, num_blocks=1).model_digest for model in (first, second, first)}
    assert len(digests) == 2
