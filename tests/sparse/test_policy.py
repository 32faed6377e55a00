"""Which layers of which requests are sparse."""

import pytest
import torch

from deepseek_flash_cache.layout import Layout
from deepseek_flash_cache.pool.identity import DENSE, CacheIdentity
from deepseek_flash_cache.sparse import LayerRange, SparsePolicy, SparseRequest, gate_named, token_budget

LAYOUT = Layout(torch.bfloat16, 8, 128, 128, tile_format="paired")


def test_the_first_two_layers_are_dense_by_default():
    assert SparsePolicy(5, 0.65).plan().sparsity == (0.0, 0.0, 0.65, 0.65, 0.65)


def test_nothing_is_sparse_unless_asked_for():
    plan = SparsePolicy(5).plan()
    assert plan.is_dense
    assert plan.mode == DENSE


def test_ranges_are_read_and_the_later_one_wins():
    ranges = LayerRange.parse("0-1:dense, 2-4:0.65,4:0.5")
    assert SparsePolicy(5, layers=ranges).plan().sparsity == (0.0, 0.0, 0.65, 0.65, 0.5)


@pytest.mark.parametrize("text", ["2", "2-1:0.5", "a-b:0.5", "0-1:sparse", "0-1:-0.5", "0-1:0.9", "0-1:1.0"])
def test_ranges_that_cannot_be_served_are_named(text):
    with pytest.raises(ValueError, match="layers"):
        LayerRange.parse(text)


def test_layers_the_model_does_not_have():
    with pytest.raises(ValueError, match="layers: 2-9 is not accepted"):
        SparsePolicy(5, layers=LayerRange.parse("2-9:0.5"))
    with pytest.raises(ValueError, match="layers"):
        SparsePolicy(5).plan(SparseRequest(layers=LayerRange.parse("2-9:0.5")))


@pytest.mark.parametrize("sparsity", [-0.1, 0.83, float("nan")])
def test_sparsity_beyond_what_works_is_refused(sparsity):
    with pytest.raises(ValueError, match="sparsity_ratio"):
        SparseRequest(sparsity_ratio=sparsity)


def test_a_request_overrules_the_operator():
    policy = SparsePolicy(4, 0.65, layers=LayerRange.parse("1-3:0.5"))
    assert policy.plan().sparsity == (0.0, 0.5, 0.5, 0.5)
    assert policy.plan(SparseRequest(mode="dense")).is_dense
    assert policy.plan(SparseRequest(sparsity_ratio=0.8)).sparsity == (0.0, 0.0, 0.8, 0.8)
    assert policy.plan(SparseRequest(layers=LayerRange.parse("3:0.2"))).sparsity == (0.0, 0.0, 0.0, 0.2)


def test_modes_tell_different_plans_apart():
    policy = SparsePolicy(6, 0.65)
    requests = [
        SparseRequest(),
        SparseRequest(sparsity_ratio=0.8),
        SparseRequest(enable_sg=True),
        SparseRequest(mode="dense"),
    ]
    modes = [policy.plan(request).mode for request in requests]
    assert len(set(modes)) == len(modes)
    assert len({*modes, SparsePolicy(6, 0.65, gate="mean").plan().mode}) == len(modes) + 1


def test_a_dense_request_never_reuses_blocks_computed_under_selection():
    sparse = SparsePolicy(6, 0.65).plan().mode
    dense, selected = (CacheIdentity("layout", b"model", mode=mode) for mode in (DENSE, sparse))
    assert dense.reuse_modes == (DENSE,)
    assert selected.reuse_modes == (DENSE, sparse)


def test_budgets_count_what_scoring_reads():
    share = gate_named("sketch2").scoring_share(LAYOUT)
    assert share == pytest.approx(20 / 256)  # 20 bytes per column against 64 keys and 64 values of 2 bytes
    assert token_budget(10_000, 0.65, share) == int((0.35 - share) * 10_000)
    assert token_budget(1_000, 0.8, share) == 256
    assert token_budget(10_000, 0.0, share) == 10_000


def test_short_histories_and_dense_layers_are_read_whole():
    plan = SparsePolicy(4, 0.65).plan()
    assert plan.budget(3, 700, LAYOUT) == 700
    assert plan.budget(0, 5000, LAYOUT) == 5000
    assert 256 <= plan.budget(3, 5000, LAYOUT) < 1750
    assert plan.budget(3, 5000, LAYOUT, factor=2.0) == pytest.approx(2 * plan.budget(3, 5000, LAYOUT), abs=1)
    assert plan.budget(3, 5000, LAYOUT, factor=float("inf")) == 5000


def test_errors_are_not_stacked_silently():
    policy = SparsePolicy(4, 0.65)
    with pytest.raises(ValueError, match=r"kv cache dtype.*allow_quantised"):
        policy.require_precision(torch.float8_e4m3fn)
    with pytest.raises(ValueError, match=r"weight bits.*allow_quantised"):
        policy.require_precision(torch.bfloat16, weight_bits=4)
    SparsePolicy(4, 0.65, allow_quantised=True).require_precision(torch.float8_e4m3fn, 4)


def test_layouts_without_whole_groups_are_refused():
    with pytest.raises(ValueError, match="pages of 32 tokens"):
        SparsePolicy(4, 0.65).require_layout(Layout(torch.bfloat16, 8, 128, 128, 32))
