"""vLLM 7845 "Prefix Caching same prompts gives different results", tenstorrent/vllm 415 (corrupt on every hit)."""

import pytest

pytest.importorskip("transformers", minversion="4.56")
import torch

from deepseek_flash_cache.engines.transformers import FlashCache, model_pool
from tests.engines.transformers.conftest import generate, prompts, tiny_model


def test_a_prompt_answered_three_times_gives_the_same_tokens_and_logits():
    model, prompt = tiny_model("llama"), prompts((200,))
    pool, answers, hits = model_pool(model, num_blocks=32), [], []
    for _ in range(3):
        with FlashCache(model.config, pool) as cache:
            hits.append(cache.adopt_prefix(**prompt))
            answers.append(generate(model, prompt, cache, output_logits=True, return_dict_in_generate=True))
    assert hits[0] == 0 and hits[1] == hits[2] == 199 // pool.blocks.block_size * pool.blocks.block_size
    cold, *warm = answers
    for answer in warm:
        assert torch.equal(answer.sequences, cold.sequences)
        difference = (torch.stack(answer.logits) - torch.stack(cold.logits)).abs().max()
        assert difference <= 1e-3
