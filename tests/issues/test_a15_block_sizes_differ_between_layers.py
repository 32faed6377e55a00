"""kvcached 446 and 451: hash granularity differed from the physical block in hybrid models; wrong blocks were hit."""

import pytest

pytest.importorskip("transformers", minversion="4.56")
import torch

from deepseek_flash_cache.config import LayoutPolicy
from deepseek_flash_cache.engines.transformers import FlashCache, model_pool
from tests.engines.transformers.conftest import generate, prompts, tiny_model


def test_a_hybrid_model_with_two_block_sizes_answers_four_times_alike():
    model = tiny_model("gemma3_text", head_dim=64, max_position_embeddings=2048)  # sliding and full layers
    pool = model_pool(model, LayoutPolicy(shallow_layers=2), num_blocks=64)
    assert {(layout.block_size, layout.extent) for layout in pool.layouts} == {(32, 2), (64, 1)}
    prompt = prompts((1464,))
    expected = generate(model, prompt, max_new_tokens=8)
    for _ in range(4):
        with FlashCache(model.config, pool) as cache:
            cache.adopt_prefix(**prompt)
            assert torch.equal(generate(model, prompt, cache, max_new_tokens=8), expected)
    assert pool.blocks.statistics.hit_tokens > 0
