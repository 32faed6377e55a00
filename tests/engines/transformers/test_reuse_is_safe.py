"""What is published must be what a later request would compute. Each case once poisoned a later, innocent request."""

from __future__ import annotations

import pytest

transformers = pytest.importorskip("transformers", minversion="4.56")
import torch  # noqa: E402

from deepseek_flash_cache.engines.transformers import FlashCache, cache_argument, model_pool  # noqa: E402

from .conftest import EXTRA, generate, prompts, tiny_model  # noqa: E402


def full(ids):
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def ids_of(length, seed=1):
    return prompts((length,), seed=seed)["input_ids"]


@pytest.fixture
def model():
    return tiny_model("llama")


@pytest.fixture
def pool(model):
    return model_pool(model, num_blocks=64)


def forward(model, cache, ids, **options):
    model.set_attn_implementation("dfc")
    try:
        with torch.no_grad():
            return model(ids, **cache_argument(model, cache), **options).logits
    finally:
        model.set_attn_implementation("sdpa")


def check_later_request(model, pool, ids, least_hits=0):
    """A new greedy request on the shared pool answers as the stock cache does."""
    with FlashCache(model.config, pool) as cache:
        assert cache.adopt_prefix(ids) >= least_hits
        assert torch.equal(generate(model, full(ids), cache), generate(model, full(ids)))
    pool.blocks.check_idle()


@pytest.mark.parametrize("name", EXTRA)
@pytest.mark.slow
def test_every_model_reuses_prefixes(name):
    model = tiny_model(name)
    pool, ids = model_pool(model, num_blocks=64), ids_of(100)
    check_later_request(model, pool, ids)
    check_later_request(model, pool, ids, least_hits=96)


def test_positions_that_do_not_count_from_zero_are_not_published(model, pool):
    ids = ids_of(100)
    with FlashCache(model.config, pool) as cache:
        cache.adopt_prefix(ids)
        forward(model, cache, ids, position_ids=torch.arange(50, 150)[None])
        with pytest.raises(ValueError, match="position_ids"):
            cache.commit(ids.tolist())
    check_later_request(model, pool, ids)
    assert pool.blocks.statistics.hit_tokens == 0


def test_positions_that_count_the_padding_are_not_published(model, pool):
    ids = ids_of(100)
    padded = torch.nn.functional.pad(ids, (37, 0))
    mask = torch.nn.functional.pad(torch.ones_like(ids), (37, 0))
    with FlashCache(model.config, pool) as cache:
        cache.adopt_prefix(padded, mask)
        forward(model, cache, padded[:, cache.get_seq_length() :], attention_mask=mask)
    check_later_request(model, pool, ids)


def test_other_positions_after_an_adopted_prefix_are_refused(model, pool):
    """Assisted decoding on a filled cache feeds the whole prompt again, at positions that are taken."""
    check_later_request(model, pool, ids_of(100))
    with FlashCache(model.config, pool) as cache:
        assert cache.adopt_prefix(ids_of(100)) > 0
        with pytest.raises(ValueError, match="position_ids"):
            forward(model, cache, ids_of(4), position_ids=torch.arange(4)[None])
        pool.blocks.check()
        assert torch.equal(generate(model, full(ids_of(100)), cache), generate(model, full(ids_of(100))))  # as it was
    check_later_request(model, pool, ids_of(100), least_hits=96)


def test_a_cropped_prompt_is_not_published_over_other_tokens(model, pool):
    ids = ids_of(150)
    other = torch.cat([ids[:, :40], ids_of(110, seed=5)], dim=1)
    with FlashCache(model.config, pool) as cache:
        cache.adopt_prefix(ids)
        forward(model, cache, ids[:, :100])
        cache.crop(-60)
        forward(model, cache, other[:, 40:])
    check_later_request(model, pool, ids)
    check_later_request(model, pool, other)


def test_a_crop_below_the_adopted_prefix_goes_on_with_other_tokens(model, pool):
    ids = ids_of(150)
    check_later_request(model, pool, ids)
    other = torch.cat([ids[:, :40], ids_of(110, seed=5)], dim=1)
    with FlashCache(model.config, pool) as cache:
        cache.crop(-(cache.adopt_prefix(ids) - 40))
        assert torch.equal(generate(model, full(other), cache), generate(model, full(other)))
    check_later_request(model, pool, ids, least_hits=32)


def test_what_only_some_layers_computed_is_not_published(model, pool):
    ids = ids_of(200)

    def fail(*arguments):
        raise RuntimeError("layer 2 fails")

    hook = model.model.layers[2].register_forward_pre_hook(fail)
    with FlashCache(model.config, pool) as cache:
        cache.adopt_prefix(ids)
        with pytest.raises(RuntimeError):
            forward(model, cache, ids)
        with pytest.raises(ValueError, match="at most 1 are accepted: 0 computed"):
            cache.commit(ids.tolist())
    hook.remove()
    check_later_request(model, pool, ids)
    assert pool.blocks.statistics.hit_tokens == 0


def test_padded_rows_are_not_published(model, pool):
    inputs = prompts((100, 60))
    with FlashCache(model.config, pool) as cache:
        answers = generate(model, inputs, cache)
        with pytest.raises(ValueError, match=r"sequences\[1\].*without padding"):
            cache.commit(answers.tolist())


def test_lengths_that_change_the_rotation_are_not_reused():
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
    key = "rope_parameters" if transformers.__version__ >= "5" else "rope_scaling"
    model = tiny_model("llama", **{key: rope})
    with FlashCache(model.config, model_pool(model, num_blocks=8)) as cache:
        with pytest.raises(ValueError, match="dynamic"):
            cache.adopt_prefix(ids_of(40))
        assert torch.equal(generate(model, prompts(), cache), generate(model, prompts()))


def test_a_pool_serves_only_its_own_model(pool):
    with pytest.raises(ValueError, match="another model"):
        FlashCache(tiny_model("qwen3").config, pool)
    with pytest.raises(ValueError, match="another model"):
        FlashCache(tiny_model("llama", num_hidden_layers=5).config, pool)


def test_a_model_around_a_served_one_is_refused():
    with pytest.raises(ValueError, match="'llava' is not served"):
        FlashCache(transformers.LlavaConfig())


@pytest.mark.parametrize("indices", [[5], [-3], [0, 2]])
def test_rows_that_are_not_there_are_refused_and_nothing_leaks(model, pool, indices):
    cache = FlashCache(model.config, pool)
    forward(model, cache, prompts((40, 40))["input_ids"])
    with pytest.raises(ValueError, match="not all in"):
        cache.batch_select_indices(torch.tensor(indices))
    forward(model, cache, torch.ones(2, 1, dtype=torch.long))
    cache.free()
    pool.blocks.check_idle()


def test_rows_may_be_counted_from_the_end_and_repeated(model, pool):
    with FlashCache(model.config, pool) as cache:
        ids = prompts((40, 40))["input_ids"]
        expected = forward(model, cache, ids)[1, -1]
        cache.crop(-1)
        cache.batch_select_indices(torch.tensor([-1, 1]))
        again = forward(model, cache, ids[1:, -1:].expand(2, 1))
        assert torch.allclose(again[:, -1], expected.expand(2, -1), atol=1e-5)
        pool.blocks.check()


def test_a_refused_mask_leaves_the_cache_as_it_was(model):
    inputs, token = prompts((9, 4)), torch.ones(2, 1, dtype=torch.long)
    with FlashCache(model.config) as cache:
        forward(model, cache, ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])
        with pytest.raises(ValueError, match="attention_mask"):
            forward(model, cache, token, attention_mask=torch.ones(2, 10, dtype=torch.long))
        assert cache.get_seq_length() == 9
        forward(model, cache, token, attention_mask=torch.cat([inputs["attention_mask"], token], dim=1))
        assert cache.get_seq_length() == 10


def test_static_caches_are_refused(model):
    cache = transformers.StaticCache(config=model.config, max_cache_len=64)
    with pytest.raises(ValueError, match="static caches"):
        forward(model, cache, ids_of(20))


def test_a_window_over_holes_is_refused():
    model = tiny_model("mistral")
    mask = torch.ones(1, 60, dtype=torch.long)
    mask[0, 15:40] = 0
    for cache in (None, FlashCache(model.config)):
        with pytest.raises(ValueError, match="sliding window"):
            forward(model, cache, ids_of(60), attention_mask=mask)


def test_training_keys_alone_is_refused_too(model):
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("k_proj" in name)
    model.set_attn_implementation("dfc")
    with pytest.raises(ValueError, match="need gradients"):
        model(ids_of(9))


def test_a_copy_keeps_the_settings_of_the_private_pool(model):
    copy = FlashCache(model.config, memory_bytes=1 << 20).fork()
    forward(model, copy, ids_of(9))
    assert copy.pool.reserved_bytes <= 1 << 20
