"""Scores, the choice of tokens and attention over them, as the specification defines them."""

import math

import pytest
import torch

from deepseek_flash_cache import spec
from deepseek_flash_cache.layout import Layout
from deepseek_flash_cache.sparse import GATES, gate_named
from deepseek_flash_cache.sparse.gates.base import GROUP_TOKENS, History
from deepseek_flash_cache.sparse.gates.sketch2 import unpacked
from deepseek_flash_cache.spec import selection

LENGTHS = [1, 63, 64, 65, 300, 1000]


def make_pool(layout, lengths, gate, seed=0):
    """A pool with shuffled pages, NaN in every unwritten slot and 0xFF in unwritten side data."""
    generator = torch.Generator().manual_seed(seed)
    pages = [-(-length // layout.page_tokens) for length in lengths]
    blocks = torch.randperm(sum(pages) + 3, generator=generator)
    cache = torch.full(layout.cache_shape(len(blocks)), torch.nan, dtype=layout.dtype)
    side = torch.full(selection.gate_shape(len(blocks), layout, gate), 255, dtype=torch.uint8)
    table = torch.full((len(lengths), max(pages) + 1), -7, dtype=torch.int32)
    keys = []
    for b, (length, count) in enumerate(zip(lengths, pages, strict=True)):
        table[b, :count] = blocks[sum(pages[:b]) : sum(pages[:b]) + count]
        key, value = torch.randn(2, length, layout.num_kv_heads, layout.head_size, generator=generator)
        token = torch.arange(length)
        slots = table[b].long()[token // layout.page_tokens] * layout.page_tokens + token % layout.page_tokens
        spec.append(key.to(layout.dtype), value.to(layout.dtype), cache, slots, layout)
        selection.summarise(cache, side, slots, layout, gate)
        keys.append(key.to(layout.dtype).float())
    return cache, side, table, torch.tensor(lengths, dtype=torch.int32), keys


LAYOUTS = [
    Layout(torch.float32, 2, 64, 64),
    Layout(torch.bfloat16, 2, 128, 128, tile_format="paired"),
    Layout(torch.float16, 3, 96, 96, 32, 2, "zorder", "swizzle"),
]


@pytest.mark.parametrize("name", GATES)
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.id)
def test_mass_is_a_distribution_that_reads_nothing_unwritten(name, layout):
    gate = gate_named(name)
    cache, side, table, lens, _ = make_pool(layout, LENGTHS, gate)
    query = torch.randn(len(LENGTHS), 2 * layout.num_kv_heads, layout.head_size).to(layout.dtype)
    mass = selection.score(query, cache, side, table, lens, layout, gate, softmax_scale=0.1)
    for b, length in enumerate(LENGTHS):
        assert torch.allclose(mass[b, :, :length].sum(dim=-1), torch.ones(layout.num_kv_heads), atol=1e-5)
        assert not mass[b, :, length:].any()


def test_the_exact_gate_scores_the_attention_itself():
    layout, gate = LAYOUTS[0], gate_named("oracle")
    cache, side, table, lens, keys = make_pool(layout, [300], gate)
    query = torch.randn(1, 4, 64)
    mass = selection.score(query, cache, side, table, lens, layout, gate, softmax_scale=0.2)
    logits = torch.einsum("hd,nhd->hn", query[0], keys[0].repeat_interleave(2, dim=1)) * 0.2
    assert torch.allclose(mass[0], logits.softmax(dim=-1).view(2, 2, -1).mean(dim=1), atol=1e-6)


def test_sketch_codes_are_the_nearest_levels():
    gate = gate_named("sketch2")
    key = torch.randn(3, GROUP_TOKENS, 2, 64) * torch.logspace(-2, 1, 64)
    least, scale, codes = unpacked(gate.summarise(key), 64)
    restored = least[:, None] + scale[:, None] * codes
    inside = (key >= least[:, None]) & (key <= (least + 3 * scale)[:, None])
    error = (restored - key).abs() / scale[:, None]
    assert error[inside].max() <= 0.5 + 1e-3
    assert error.max() <= 0.51  # what rounding minimum and scale to fp16 adds at the ends


def test_sketch_scores_follow_the_definition_in_integers():
    gate = gate_named("sketch2")
    key, query = torch.randn(192, 2, 64), torch.randn(2, 4, 64)
    history = History(gate.summarise(key.view(3, 64, 2, 64)), key)
    least, scale, codes = (part.double() for part in unpacked(history.records, 64))
    logits = gate.closed_logits(query, history)
    for group, head, g, token in [(0, 0, 0, 0), (1, 1, 3, 17), (2, 0, 2, 63)]:
        scaled = query[head, g].double() * scale[group, head]
        step = scaled.abs().max() / 127
        weights = (scaled / step).round()
        constant = (query[head, g].double() * least[group, head] + 1.5 * (scaled - step * weights)).sum()
        expected = constant + step * (weights * codes[group, token, head]).sum()
        assert math.isclose(logits[head, g, 64 * group + token], expected, rel_tol=1e-4, abs_tol=1e-4)


@pytest.mark.parametrize("spoil", [math.nan, math.inf, 1e6])
def test_keys_that_cannot_be_sketched_make_their_head_read_all(spoil):
    layout, gate = LAYOUTS[0], gate_named("sketch2")
    key = torch.randn(128, 2, 64)
    key[5, 1, 3] = spoil
    cache, side = (
        torch.zeros(layout.cache_shape(2)),
        torch.zeros(selection.gate_shape(2, layout, gate), dtype=torch.uint8),
    )
    spec.append(key, key, cache, torch.arange(128), layout)
    selection.summarise(cache, side, torch.arange(128), layout, gate)
    table, lens = torch.tensor([[0, 1]], dtype=torch.int32), torch.tensor([128], dtype=torch.int32)
    mass = selection.score(torch.randn(1, 2, 64), cache, side, table, lens, layout, gate, softmax_scale=0.1)
    chosen = selection.select(mass, lens, torch.tensor([100], dtype=torch.int32), 100)
    assert chosen.fell_back.tolist() == [[False, True]]
    assert chosen.counts.tolist() == [[100, 128]]


def test_selection_keeps_the_ends_the_heaviest_and_the_lowest_of_equals():
    mass = torch.full((1, 1, 300), 1 / 600)
    mass[0, 0, [50, 120, 200]] = 0.1
    lens, budget = torch.tensor([300], dtype=torch.int32), torch.tensor([16 + 64 + 5], dtype=torch.int32)
    chosen = selection.select(mass, lens, budget, 90)
    expected = [*range(16), 16, 17, 50, 120, 200, *range(236, 300)]
    assert chosen.tokens[0, 0].tolist() == [*expected, *[-1] * 5]
    assert math.isclose(chosen.missed_mass[0, 0], 1 - float(mass[0, 0, expected].sum()), abs_tol=1e-6)


def test_rows_have_budgets_of_their_own():
    mass = torch.rand(3, 2, 500)
    lens = torch.tensor([10, 300, 500], dtype=torch.int32)
    together = selection.select(mass, lens, torch.tensor([256, 300, 120], dtype=torch.int32), 120)
    assert together.counts.tolist() == [[10, 10], [300, 300], [120, 120]]
    assert (together.tokens[:2] == -1).all()  # rows that read everything list nothing
    alone = selection.select(mass[2:], lens[2:], torch.tensor([120], dtype=torch.int32), 120)
    assert torch.equal(alone.tokens[0], together.tokens[2])


def test_a_budget_wider_than_the_room_is_refused():
    with pytest.raises(ValueError, match=r"budgets\[0\]: 120"):
        selection.select(*(torch.rand(1, 2, 500), torch.tensor([500]).int(), torch.tensor([120]).int(), 100))


def test_protected_tokens_are_kept_before_the_heaviest():
    mass, lens = torch.rand(1, 1, 500), torch.tensor([500], dtype=torch.int32)
    protect = torch.zeros(1, 500, dtype=torch.bool)
    protect[0, [100, 150]] = True
    mass[0, 0, [100, 150]] = 0.0
    chosen = selection.select(mass, lens, torch.tensor([90], dtype=torch.int32), 90, protect)
    assert {100, 150} <= set(chosen.tokens[0, 0].tolist())
    protect[0] = True
    crowded = selection.select(mass, lens, torch.tensor([90], dtype=torch.int32), 90, protect)
    assert crowded.tokens[0, 0].tolist() == [*range(26), *range(436, 500)]


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.id)
def test_all_selected_is_dense(layout):
    gate = gate_named("sketch2")
    cache, side, table, lens, _ = make_pool(layout, LENGTHS, gate)
    query = torch.randn(len(LENGTHS), 2 * layout.num_kv_heads, layout.head_size).to(layout.dtype)
    mass = selection.score(query, cache, side, table, lens, layout, gate, softmax_scale=0.1)
    chosen = selection.select(mass, lens, lens, 0)
    options = {"softmax_scale": 0.1, "softcap": 5.0, "sinks": torch.randn(2 * layout.num_kv_heads)}
    sparse = selection.attend_selected(query, cache, table, lens, chosen.tokens, chosen.counts, layout, **options)
    starts = torch.arange(len(LENGTHS) + 1, dtype=torch.int32)
    dense = spec.attend(query, cache, table, starts, lens, layout, **options)
    assert torch.allclose(sparse.out.float(), dense.out.float(), atol=1e-2 if layout.dtype != torch.float32 else 1e-6)
    assert torch.allclose(sparse.lse, dense.lse, atol=1e-5)


def test_unselected_tokens_are_not_read():
    layout, gate = LAYOUTS[0], gate_named("oracle")
    cache, _, table, lens, _ = make_pool(layout, [200], gate)
    tokens = torch.arange(0, 200, 3, dtype=torch.int32).expand(1, 2, -1).contiguous()
    counts = torch.full((1, 2), tokens.shape[2], dtype=torch.int32)
    query = torch.randn(1, 2, 64)
    arguments = table, lens, tokens, counts, layout
    before = selection.attend_selected(query, cache, *arguments, softmax_scale=0.1).out
    position = torch.arange(200)[torch.arange(200) % 3 != 0]
    slots = table[0].long()[position // 64] * 64 + position % 64
    spec.append(*torch.full((2, len(slots), 2, 64), torch.nan), cache, slots, layout)
    assert torch.equal(before, selection.attend_selected(query, cache, *arguments, softmax_scale=0.1).out)


def test_an_open_group_has_no_record():
    layout, gate = LAYOUTS[0], gate_named("sketch2")
    cache, side = torch.zeros(layout.cache_shape(1)), torch.full((1, 2, 1, 20 * 64), 7, dtype=torch.uint8)
    key = torch.randn(64, 2, 64)
    spec.append(key[:63], key[:63], cache, torch.arange(63), layout)
    selection.summarise(cache, side, torch.arange(63), layout, gate)
    assert (side == 7).all()
    spec.append(key[63:], key[63:], cache, torch.tensor([63]), layout)
    selection.summarise(cache, side, torch.tensor([63]), layout, gate)
    assert torch.equal(side[0, :, 0], gate.summarise(key[None])[0])
