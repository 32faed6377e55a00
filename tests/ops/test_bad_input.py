"""Every refused input, by both implementations: a ValueError naming argument, value and range; nothing written."""

import re

import pytest
import torch

from deepseek_flash_cache import ops, spec
from deepseek_flash_cache.layout import Layout
from tests.fixtures import compute_dtype, empty_cache, hostile_cache, layout_of, raw

IMPLEMENTATIONS = [pytest.param(ops, id="ops"), pytest.param(spec, id="spec")]
FP8 = layout_of(torch.float8_e4m3fn)


def append_arguments(layout=None, rows=3):
    layout = layout or layout_of()
    key = torch.randn(rows, 2, 64).to(compute_dtype(layout))
    return {
        "key": key,
        "value": key.clone(),
        "cache": empty_cache(layout, 8),
        "slot_mapping": torch.arange(rows),
        "layout": layout,
    }


BAD_APPENDS = {
    "slot -2": ({"slot_mapping": torch.tensor([0, 1, -2])}, "slot_mapping[2]: -2 is not accepted; it must be -1 or"),
    "slot past the pool": ({"slot_mapping": torch.tensor([0, 512, 1])}, "slot_mapping[1]: 512 is not accepted"),
    "slot past 2^32": ({"slot_mapping": torch.tensor([2**40])}, f"slot_mapping[0]: {2**40} is not accepted"),
    "more slots than rows": ({"slot_mapping": torch.arange(4)}, "slot_mapping length: 4"),
    "int32 slots": ({"slot_mapping": torch.arange(3).int()}, "slot_mapping dtype: torch.int32"),
    "2-D slots": ({"slot_mapping": torch.zeros(3, 1).long()}, "slot_mapping shape"),
    "key type": ({"key": torch.zeros(3, 2, 64).half()}, "dtype"),
    "double": ({"key": torch.zeros(3, 2, 64).double()}, "key dtype: torch.float64"),
    "key heads": ({"key": torch.zeros(3, 4, 64)}, "key shape: (3, 4, 64)"),
    "key columns": ({"key": torch.zeros(3, 2, 128)}, "key shape: (3, 2, 128)"),
    "value rows": ({"value": torch.zeros(2, 2, 64)}, "value tokens: 2"),
    "transposed key": ({"key": torch.zeros(3, 64, 2).transpose(1, 2)}, "key strides"),
    "cache shape": ({"cache": torch.zeros(8, 2, 4, 64, 16)}, "cache shape"),
    "cache type": ({"cache": torch.zeros(8, 2, 4, 64, 32).half()}, "cache dtype: torch.float16"),
    "cache strides": ({"cache": torch.zeros(16, 2, 4, 64, 32)[::2]}, "cache strides"),
    "scale without fp8": ({"k_scale": 0.5}, "k_scale: 0.5"),
    "meta key": ({"key": torch.zeros(3, 2, 64, device="meta")}, "key device: meta"),
}


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", BAD_APPENDS)
def test_append(name, implementation):
    changes, message = BAD_APPENDS[name]
    arguments = {**append_arguments(), **changes}
    before = raw(arguments["cache"]).clone()
    with pytest.raises(ValueError, match=re.escape(message)):
        implementation.append(**arguments)
    assert torch.equal(raw(arguments["cache"]), before)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf"), 1e-50, 1e39])
@pytest.mark.parametrize("name", ["k_scale", "v_scale"])
def test_scales(name, scale, implementation):
    arguments = append_arguments(FP8)
    with pytest.raises(ValueError, match=re.escape(f"{name}: {scale} is not accepted; it must be positive and finite")):
        implementation.append(**arguments, **{name: scale})
    assert (raw(arguments["cache"]) == 0xFF).all()
    case = hostile_cache(FP8, (65,), (1,))
    with pytest.raises(ValueError, match=name):
        implementation.attend(*case.tensors, FP8, softmax_scale=1.0, **{name: scale})


def table_with(case, entry):
    table = case.block_table.clone()
    table[1, 1] = entry
    return table


BAD_ATTENDS = {
    "table entry -1": (lambda c: {"block_table": table_with(c, -1)}, "block_table[1, 1]: -1 is not accepted"),
    "table entry past the pool": (lambda c: {"block_table": table_with(c, 99)}, "block_table[1, 1]: 99"),
    "kv_len past the table": (
        lambda c: {"kv_lens": torch.tensor([64, 9999]).int()},
        "kv_lens[1]: 9999 is not accepted; it must be in [0, 256], what block_table can hold",
    ),
    "negative kv_len": (lambda c: {"kv_lens": torch.tensor([-1, 65]).int()}, "kv_lens[0]: -1"),
    "cu_seqlens past T": (lambda c: {"cu_seqlens_q": torch.tensor([0, 1, 9]).int()}, "cu_seqlens_q: [0, 1, 9]"),
    "cu_seqlens decrease": (lambda c: {"cu_seqlens_q": torch.tensor([0, 3, 1]).int()}, "cu_seqlens_q: [0, 3, 1]"),
    "cu_seqlens start": (lambda c: {"cu_seqlens_q": torch.tensor([1, 2, 3]).int()}, "cu_seqlens_q: [1, 2, 3]"),
    "int64 table": (lambda c: {"block_table": c.block_table.long()}, "block_table dtype: torch.int64"),
    "int64 lengths": (lambda c: {"kv_lens": c.kv_lens.long()}, "kv_lens dtype: torch.int64"),
    "transposed table": (lambda c: {"block_table": c.block_table.T.contiguous().T}, "block_table strides"),
    "2-D query": (lambda c: {"query": c.query[0]}, "query shape"),
    "query heads": (lambda c: {"query": torch.zeros(4, 7, 64)}, "query heads: 7"),
    "query columns": (lambda c: {"query": torch.zeros(4, 8, 32)}, "query shape: (4, 8, 32)"),
    "query type": (lambda c: {"query": c.query.double()}, "query dtype: torch.float64"),
    "meta table": (lambda c: {"block_table": c.block_table.to("meta")}, "block_table device: meta"),
    "window": (lambda c: {"window_left": -2}, "window_left: -2"),
    "softcap": (lambda c: {"softcap": -1.0}, "softcap: -1.0"),
    "tiny softcap": (lambda c: {"softcap": 1e-40}, "softcap: 1e-40"),
    "endless window": (lambda c: {"window_right": 2**63 - 1, "causal": False}, "window_right: 9223372036854775807"),
    "endless left window": (lambda c: {"window_left": 2**63 - 1}, "window_left: 9223372036854775807"),
    "softmax_scale": (lambda c: {"softmax_scale": float("nan")}, "softmax_scale: nan"),
    "sinks": (lambda c: {"sinks": torch.zeros(3)}, "sinks shape: (3,)"),
}


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", BAD_ATTENDS)
def test_attend(name, implementation):
    change, message = BAD_ATTENDS[name]
    case = hostile_cache(layout_of(), (64, 65), (1, 3))
    names = ("query", "cache", "block_table", "cu_seqlens_q", "kv_lens")
    arguments = dict(zip(names, case.tensors, strict=True)) | {"softmax_scale": 1.0} | change(case)
    if implementation is ops and arguments["query"].dim() == 3:
        arguments["out"] = out = torch.full((4, arguments["query"].shape[1], 64), 7.0)
    with pytest.raises(ValueError, match=re.escape(message)):
        implementation.attend(**arguments, layout=case.layout)
    assert "out" not in arguments or (out == 7).all()


BAD_COPIES = {
    "source": ([[0, 1], [9, 2]], "pairs[1] source block: 9 is not accepted; it must be in [0, 4), the source pool"),
    "target": ([[0, -1]], "pairs[0] target block: -1 is not accepted; it must be in [0, 4), the target pool"),
    "target twice": ([[0, 2], [1, 2]], "pairs target blocks"),
}


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", BAD_COPIES)
def test_copy_blocks(name, implementation):
    pairs, message = BAD_COPIES[name]
    pool = empty_cache(layout_of(), 4, 0)
    raw(pool)[0] = 5
    before = raw(pool).clone()
    with pytest.raises(ValueError, match=re.escape(message)):
        implementation.copy_blocks(pool, pool, torch.tensor(pairs), layout_of())
    assert torch.equal(raw(pool), before)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("length", [-1, 129])
def test_unpack_length(length, implementation):
    with pytest.raises(ValueError, match=re.escape(f"length: {length} is not accepted; it must be in [0, 128]")):
        implementation.unpack(empty_cache(layout_of(), 2), length, layout_of())


@pytest.mark.parametrize(
    "name", ["", "bicl9-linear-row-b64-e1-fp32-h2-k64-v64", "bicl1-linear-row-b064-e1-fp32-h2-k64-v64"]
)
def test_unknown_layout(name):
    rows, slots = torch.zeros(1, 2, 64), torch.zeros(1, dtype=torch.int64)
    cache = empty_cache(layout_of(), 1)
    with pytest.raises(ValueError, match="layout"):
        torch.ops.dfc.append(rows, rows, cache, slots, name, 1.0, 1.0)
    with pytest.raises(ValueError, match="layout"):
        Layout.parse(name)


def test_wrong_out():
    case = hostile_cache(layout_of(), (65,), (3,))
    for out in (torch.zeros(3, 8, 32), torch.zeros(3, 8, 64).half(), torch.zeros(3, 64, 8).transpose(1, 2)):
        with pytest.raises(ValueError, match="out "):
            ops.attend(*case.tensors, case.layout, softmax_scale=1.0, out=out)
