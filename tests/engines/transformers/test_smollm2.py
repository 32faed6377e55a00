"""The real SmolLM2-135M through our cache: sensible text, and the stock cache's tokens."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers", minversion="4.56")
import torch

from deepseek_flash_cache.commands.loading import chat_text, load_model
from deepseek_flash_cache.engines.transformers import FlashCache, model_pool
from tests.marks import needs_smollm2

from .conftest import generate

pytestmark = [pytest.mark.slow, pytest.mark.model, needs_smollm2]
SYSTEM = "You are a helpful assistant who answers briefly and clearly. " * 8


@pytest.fixture(scope="module")
def smollm2():
    return load_model("smollm2", torch.float32)


def test_the_tokenizer_round_trips_and_the_model_knows_paris(smollm2):
    model, tokenizer = smollm2
    text = "The capital of France is"
    inputs = tokenizer(text, return_tensors="pt")
    assert tokenizer.decode(inputs["input_ids"][0]) == text
    output = generate(model, inputs, FlashCache(model.config), max_new_tokens=4)
    assert tokenizer.decode(output[0]).startswith("The capital of France is Paris")


@pytest.mark.parametrize("num_beams", [1, 3])
def test_ragged_chats_equal_stock_cold_and_warm(smollm2, num_beams):
    model, tokenizer = smollm2
    questions = ("What is the capital of France?", "Why is the sky blue, and why is it red in the evening?")
    texts = [chat_text(tokenizer, question, SYSTEM) for question in questions]
    inputs = tokenizer(texts, return_tensors="pt", padding=True)
    expected = generate(model, inputs, max_new_tokens=24, num_beams=num_beams)
    pool = model_pool(model, num_blocks=64)
    for warm in (False, True):
        with FlashCache(model.config, pool) as cache:
            hits = cache.adopt_prefix(**inputs)
            cache.batch_repeat_interleave(num_beams)
            assert (hits > 100) == warm
            assert torch.equal(generate(model, inputs, cache, max_new_tokens=24, num_beams=num_beams), expected)
            pool.blocks.check()
    pool.blocks.check_idle()


def test_a_conversation_of_three_turns_reuses_the_history(smollm2):
    model, tokenizer = smollm2
    pool, messages = model_pool(model, num_blocks=64), [{"role": "system", "content": SYSTEM}]
    hits = []
    for question in ("What is the capital of France?", "How many people live there?", "And what do they eat?"):
        messages.append({"role": "user", "content": question})
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        inputs = tokenizer(text, return_tensors="pt")
        with FlashCache(model.config, pool) as cache:
            hits.append(cache.adopt_prefix(**inputs))
            output = generate(model, inputs, cache, max_new_tokens=16)
            cache.commit(output.tolist())
        assert torch.equal(output, generate(model, inputs, max_new_tokens=16))
        answer = tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        messages.append({"role": "assistant", "content": answer})
    assert 0 == hits[0] < hits[1] <= hits[2]
