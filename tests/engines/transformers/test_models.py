"""Greedy fp32 tokens equal the stock cache's, for every served kind of model and every way to generate."""

from __future__ import annotations

import copy

import pytest

transformers = pytest.importorskip("transformers", minversion="4.56")
import torch  # noqa: E402

from deepseek_flash_cache.config import LayoutPolicy  # noqa: E402
from deepseek_flash_cache.engines.transformers import SUPPORTED_MODELS, FlashCache, model_pool  # noqa: E402

from .conftest import EXTRA, generate, prompts, tiny_model  # noqa: E402


def test_every_supported_model_is_tested():
    assert set(SUPPORTED_MODELS) == {name.partition("-")[0] for name in EXTRA}


@pytest.mark.parametrize("name", EXTRA)
def test_greedy_tokens_of_a_padded_batch_equal_stock(name):
    model, inputs = tiny_model(name), prompts()
    expected = generate(model, inputs)
    assert len(expected[:, 70:].unique()) > 20, "the model repeats itself: this test would prove little"
    with FlashCache(model.config) as cache:
        assert torch.equal(generate(model, inputs, cache), expected)
        cache.pool.blocks.check()
    cache.pool.blocks.check_idle()


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss"])
@pytest.mark.parametrize("block_size", [32, "auto"])
@pytest.mark.slow
def test_beam_search_equals_stock_and_shares_blocks(name, block_size):
    model, inputs = tiny_model(name), prompts()
    expected = generate(model, inputs, num_beams=3, num_return_sequences=2)
    with FlashCache(model.config, policy=LayoutPolicy(block_size)) as cache:
        result = generate(model, inputs, cache, num_beams=3, num_return_sequences=2)
        assert torch.equal(result, expected)
        cache.pool.blocks.check()
    cache.pool.blocks.check_idle()


def test_sampling_equals_stock_with_the_same_seed():
    model, inputs = tiny_model("llama"), prompts()
    options = {"do_sample": True, "temperature": 0.8, "top_k": 20}
    torch.manual_seed(7)
    expected = generate(model, inputs, **options)
    torch.manual_seed(7)
    with FlashCache(model.config) as cache:
        assert torch.equal(generate(model, inputs, cache, **options), expected)


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3_text"])
def test_assisted_decoding_rolls_rejected_drafts_back(name):
    model, inputs = tiny_model(name), prompts((62,))
    expected = generate(model, inputs)
    with FlashCache(model.config) as cache:
        assert torch.equal(generate(model, inputs, cache, prompt_lookup_num_tokens=4), expected)
        assert cache.sequences[0].num_tokens == cache.get_seq_length()
        cache.pool.blocks.check()


def test_assistant_model_with_a_cache_of_its_own():
    model, assistant = tiny_model("llama"), tiny_model("qwen3")
    inputs = prompts((40,))
    expected = generate(model, inputs)
    with FlashCache(model.config) as cache:
        assert torch.equal(generate(model, inputs, cache, assistant_model=assistant), expected)


def test_multi_turn_continues_the_same_cache():
    model, first = tiny_model("llama"), prompts((30,))
    follow_up = prompts((20,), seed=9)["input_ids"]
    with FlashCache(model.config) as cache:
        answer = generate(model, first, cache)
        turn = {"input_ids": torch.cat([answer, follow_up], dim=1)}
        turn["attention_mask"] = torch.ones_like(turn["input_ids"])
        assert torch.equal(generate(model, turn, cache), generate(model, turn))


def test_a_new_turn_hits_what_an_earlier_cache_committed():
    model, first = tiny_model("llama"), prompts((130,))
    pool = model_pool(model, num_blocks=64)
    with FlashCache(model.config, pool) as cache:
        assert cache.adopt_prefix(**first) == 0
        answer = generate(model, first, cache)
        cache.commit(answer.tolist())
    pool.blocks.check_idle()
    turn = {"input_ids": torch.cat([answer, prompts((9,), seed=5)["input_ids"]], dim=1)}
    turn["attention_mask"] = torch.ones_like(turn["input_ids"])
    with FlashCache(model.config, pool) as cache:
        page = pool.blocks.block_size
        assert cache.adopt_prefix(**turn) == (answer.shape[1] - 1) // page * page > first["input_ids"].shape[1]
        assert torch.equal(generate(model, turn, cache), generate(model, turn))
        pool.blocks.check()


def test_ragged_rows_share_a_system_prompt():
    """Rows with different padding adopt as much of a common prefix as one starting column allows."""
    model = tiny_model("qwen3")
    system = prompts((100,), seed=3)["input_ids"][0]
    rows = [torch.cat([system, prompts((n,), seed=n)["input_ids"][0]]) for n in (3, 40, 11)]
    columns = max(map(len, rows))
    inputs = {
        "input_ids": torch.stack([torch.nn.functional.pad(row, (columns - len(row), 0)) for row in rows]),
        "attention_mask": torch.stack([(torch.arange(columns) >= columns - len(row)).long() for row in rows]),
    }
    pool, expected = model_pool(model, num_blocks=64), generate(model, inputs)
    for minimum in (0, 3 * 32):
        with FlashCache(model.config, pool) as cache:
            assert cache.adopt_prefix(**inputs) >= minimum
            assert torch.equal(generate(model, inputs, cache), expected)
            pool.blocks.check()
    pool.blocks.check_idle()


def test_copies_fork_and_do_not_disturb_each_other():
    model, inputs = tiny_model("llama"), prompts((45,))
    expected = generate(model, inputs)
    with FlashCache(model.config) as cache:
        model.set_attn_implementation("dfc")
        with torch.no_grad():
            past = {key: value[:, :40] for key, value in inputs.items()}
            from deepseek_flash_cache.engines.transformers import cache_argument

            model(**past, **cache_argument(model, cache))
        model.set_attn_implementation("sdpa")
        twin = copy.deepcopy(cache)
        assert torch.equal(generate(model, inputs, twin), expected)
        assert torch.equal(generate(model, inputs, cache), expected)
        twin.free()
        cache.pool.blocks.check()
    cache.pool.blocks.check_idle()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_logits_stay_close_to_stock(dtype):
    model, inputs = tiny_model("llama").to(dtype), prompts()
    expected = generate(model, inputs, max_new_tokens=1, output_logits=True, return_dict_in_generate=True)
    with FlashCache(model.config) as cache:
        result = generate(model, inputs, cache, max_new_tokens=1, output_logits=True, return_dict_in_generate=True)
    scale = expected.logits[0].float().abs().max()
    assert (result.logits[0] - expected.logits[0]).float().abs().max() < 0.05 * scale


def test_long_prompts_in_chunks_equal_stock():
    model, inputs = tiny_model("gemma2"), prompts((150,))
    expected = generate(model, inputs)
    with FlashCache(model.config) as cache:
        assert torch.equal(generate(model, inputs, cache, prefill_chunk_size=37), expected)
