"""attend over plain rows, ragged and in pages of any size, against float64: no copy, no slot read that must not be."""

import math
import subprocess
import sys
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from deepseek_flash_cache import ops, spec
from tests.fixtures import FP8, assert_close, exact_attention, raw, strided_rows
from tests.ops.test_attend import LEVELS, MASKS

needs_binary = pytest.mark.skipif(ops._C is None, reason="the extension is not built")
LENS, Q_LENS = (0, 1, 33, 64, 129, 300), (2, 1, 40, 3, 17, 1)
HEAD_SIZES = ((64, 64), (80, 80), (192, 128), (40, 24), (7, 129), (576, 512))


@dataclass
class Plain:
    query: Tensor
    key: Tensor
    value: Tensor
    starts: Tensor
    lens: Tensor
    where: dict[str, Tensor]  # cu_seqlens_k, or block_table and first_keys
    keys: list[Tensor]
    values: list[Tensor]
    function: str

    def attend(self, module=ops, **options):
        tensors = self.query, self.key, self.value
        extra = {"return_lse": True} if module is ops else {}
        arguments = {"cu_seqlens_q": self.starts, "kv_lens": self.lens, **self.where, **extra, **options}
        return getattr(module, self.function)(*tensors, **arguments)

    def check(self, module=ops, **options):
        scale = self.query.shape[2] ** -0.5
        got = self.attend(module, softmax_scale=scale, **options)
        exact = SimpleNamespace(
            query=self.query,
            layout=SimpleNamespace(head_size_v=self.value.shape[-1]),
            cu_seqlens_q=self.starts,
            keys=self.keys,
            values=self.values,
        )
        options = {name: value for name, value in options.items() if not name.endswith("_scale")}
        out, lse = exact_attention(exact, scale, **options)
        assert_close(got.out, out)
        assert_close(got.lse, lse, torch.float32)


def filled(shape, dtype, filling):
    return torch.full(shape, filling).to(dtype)


def sequences(lens, heads, sizes, dtype, random):
    """Per sequence K and V as stored."""
    rows = [[strided_rows(n, heads, columns, torch.float32, random).to(dtype) for columns in sizes] for n in lens]
    return [key for key, _ in rows], [value for _, value in rows]


def queries(q_lens, heads, columns, dtype, random):
    compute = torch.bfloat16 if dtype in FP8 else dtype
    starts = torch.tensor([0, *q_lens]).cumsum(0).int()
    return strided_rows(sum(q_lens), heads, columns, compute, random), starts


def put(target, rows):
    target.view(raw(rows).dtype)[: len(rows)] = raw(rows)


def linear(lens=LENS, q_lens=Q_LENS, sizes=(64, 64), dtype=torch.float32, kv_heads=2, filling=math.nan, spare=3):
    """Ragged rows; every sequence owns `spare` more than it uses, of `filling`; V lies beside K, heads have gaps."""
    random = torch.Generator().manual_seed(0)
    keys, values = sequences(lens, kv_heads, sizes, dtype, random)
    cu = torch.tensor([0, *(n + spare for n in lens)]).cumsum(0).int()
    both = filled((int(cu[-1]), kv_heads + 1, sum(sizes) + 5), dtype, filling)[:, 1:]
    key, value = both[..., : sizes[0]], both[..., sizes[0] : sum(sizes)]
    for b in range(len(lens)):
        put(key[cu[b] :], keys[b])
        put(value[cu[b] :], values[b])
    query, starts = queries(q_lens, kv_heads * 4, sizes[0], dtype, random)
    exact = [[rows.double() for rows in part] for part in (keys, values)]
    return Plain(
        query, key, value, starts, torch.tensor(lens).int(), {"cu_seqlens_k": cu}, *exact, function="attend_linear"
    )


def paged(page_size, lens=LENS, q_lens=Q_LENS, sizes=(64, 64), dtype=torch.float32, kv_heads=2, firsts=None):
    """Shuffled pages of NaN wherever no key lies; table entries past those in use are garbage."""
    random = torch.Generator().manual_seed(0)
    keys, values = sequences(lens, kv_heads, sizes, dtype, random)
    firsts = firsts or (0,) * len(lens)
    needed = [-(-(n + first) // page_size) for n, first in zip(lens, firsts, strict=True)]
    blocks = torch.randperm(sum(needed) + 2, generator=random).int()
    table = torch.full((len(lens), max(needed) + 4), 2**31 - 1, dtype=torch.int32)[:, 1 : max(needed) + 2]
    key, value = (filled((len(blocks), page_size, kv_heads, columns), dtype, math.nan) for columns in sizes)
    used = 0
    for b, count in enumerate(needed):
        table[b, :count] = blocks[used : used + count]
        used += count
        for i in range(lens[b]):
            page, row = divmod(i + firsts[b], page_size)
            put(key[table[b, page], row : row + 1], keys[b][i : i + 1])
            put(value[table[b, page], row : row + 1], values[b][i : i + 1])
        table[b, : firsts[b] // page_size] = -1
    query, starts = queries(q_lens, kv_heads * 4, sizes[0], dtype, random)
    where = {"block_table": table, "first_keys": torch.tensor(firsts).int() if any(firsts) else None}
    exact = [[rows.double() for rows in part] for part in (keys, values)]
    return Plain(query, key, value, starts, torch.tensor(lens).int(), where, *exact, function="attend_pages")


@pytest.fixture(params=LEVELS)
def level(request):
    ops._C.force_isa(request.param)
    yield request.param
    ops._C.force_isa("")


@pytest.mark.parametrize("module", [ops, spec], ids=["ops", "spec"])
@pytest.mark.parametrize("mask", MASKS)
def test_masks(mask, module):
    linear().check(module, **MASKS[mask])
    paged(48).check(module, **MASKS[mask])


@needs_binary
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, *FP8], ids=str)
@pytest.mark.parametrize("sizes", HEAD_SIZES, ids=str)
@pytest.mark.slow
def test_head_sizes_and_storage_types(level, sizes, dtype):
    linear(sizes=sizes, dtype=dtype, kv_heads=1).check()
    linear(sizes=sizes, dtype=dtype, kv_heads=1, spare=0).check()


@needs_binary
@pytest.mark.parametrize("page_size", [1, 3, 16, 32, 64, 100, 256])
@pytest.mark.parametrize("firsts", [None, (5, 0, 100, 64, 1, 259)], ids=["", "left padding"])
@pytest.mark.slow
def test_page_sizes(level, page_size, firsts):
    paged(page_size, firsts=firsts).check()
    paged(page_size, sizes=(80, 40), dtype=torch.bfloat16, firsts=firsts).check()


def test_long_histories_are_cut_into_chunks():
    linear((5000, 1024, 1025), (1, 2, 3)).check()
    paged(1000, (5000, 3000), (1, 2)).check(window_left=1500)


def test_a_fixed_cache_is_one_page_per_sequence():
    case = paged(300, (300, 7, 299), (1, 3, 2))
    assert case.where["block_table"].shape[1] == 2
    case.where["block_table"] = case.where["block_table"][:, :1]
    case.check()


def test_without_lengths_all_rows_are_used():
    case = linear(spare=0)
    expected = case.attend(softmax_scale=0.1)
    case.lens = None
    assert torch.equal(case.attend(softmax_scale=0.1).out, expected.out)
    assert torch.equal(case.attend(spec, softmax_scale=0.1).lse, case.attend(spec, softmax_scale=0.1).lse)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, FP8[0]], ids=str)
def test_unread_rows_never_change_a_bit(dtype):
    results = [linear(dtype=dtype, filling=filling).attend(softmax_scale=0.1) for filling in (math.nan, 0.0)]
    assert torch.equal(raw(results[0].out), raw(results[1].out))
    assert torch.equal(raw(results[0].lse), raw(results[1].lse))


def test_scales_of_fp8_rows():
    case = linear(dtype=FP8[0])
    case.keys, case.values = [key * 0.5 for key in case.keys], [value * 3.0 for value in case.values]
    case.check(k_scale=0.5, v_scale=3.0)
    with pytest.raises(ValueError, match=r"k_scale: 0.5 is not accepted; it must be 1.0 for torch.float32 storage"):
        linear().attend(softmax_scale=1.0, k_scale=0.5)


@pytest.mark.skipif(not hasattr(torch.library, "opcheck"), reason="torch before 2.4 does not compile this")
def test_other_devices_and_compile():
    case = linear()

    def step(query):
        return case.attend(softmax_scale=0.1).out + query.sum()

    assert torch.equal(torch.compile(step, fullgraph=True, backend="aot_eager")(case.query), step(case.query))


GUARDED = """
import ctypes, mmap, sys, torch
from deepseek_flash_cache import ops
ops._C.force_isa(sys.argv[1])
PAGE, libc = mmap.PAGESIZE, ctypes.CDLL(None, use_errno=True)

def at_the_end(rows):  # of readable memory: the next byte is a segmentation fault
    size = -(-rows.nbytes // PAGE) * PAGE
    area = mmap.mmap(-1, size + PAGE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(area))
    assert libc.mprotect(ctypes.c_void_p(start + size), PAGE, 0) == 0
    view = torch.frombuffer(area, dtype=torch.uint8, count=rows.nbytes, offset=size - rows.nbytes)
    return view.view(rows.dtype).view(rows.shape).copy_(rows)

for dtype in (torch.float32, torch.bfloat16, torch.float8_e4m3fn):
    for tokens, sizes, q_len in ((1, (64, 64), 1), (70, (64, 64), 1), (70, (72, 40), 100), (64, (7, 3), 1)):
        key, value = (at_the_end(torch.randn(tokens, 2, columns).to(dtype)) for columns in sizes)
        query = torch.randn(q_len, 4, sizes[0], dtype=torch.bfloat16 if dtype.itemsize == 1 else dtype)
        starts, owned = torch.tensor([0, q_len]).int(), torch.tensor([0, tokens]).int()
        out = ops.attend_linear(query, key, value, starts, owned, softmax_scale=1.0).out
        pages = [rows.unflatten(0, (1, tokens)) for rows in (key, value)]
        table = torch.zeros(1, 1).int()
        assert torch.equal(ops.attend_pages(query, *pages, table, starts, owned[1:], softmax_scale=1.0).out, out)
print("not one byte too many")
"""


@needs_binary
@pytest.mark.parametrize("isa", LEVELS)
@pytest.mark.slow
def test_nothing_is_read_past_the_end_of_the_tensors(isa):
    done = subprocess.run([sys.executable, "-c", GUARDED, isa], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "not one byte too many", (done.returncode, done.stderr[-2000:])


BAD = {
    "cu_seqlens_k past the rows": ({"cu_seqlens_k": torch.tensor([0, 60, 71]).int()}, "cu_seqlens_k: [0, 60, 71]"),
    "cu_seqlens_k decrease": ({"cu_seqlens_k": torch.tensor([0, 60, 59]).int()}, "cu_seqlens_k: [0, 60, 59]"),
    "cu_seqlens_k length": ({"cu_seqlens_k": torch.tensor([0, 60]).int()}, "cu_seqlens_k shape: (2,)"),
    "kv_len past its rows": (
        {"kv_lens": torch.tensor([61, 1]).int()},
        "kv_lens[0]: 61 is not accepted; it must be in [0, 60], the rows cu_seqlens_k gives it",
    ),
    "key strides": ({"key": torch.zeros(70, 64, 2).transpose(1, 2)}, "key strides"),
    "value dtype": ({"value": torch.zeros(70, 2, 64).half()}, "value dtype: torch.float16"),
    "value rows": ({"value": torch.zeros(69, 2, 64)}, "value shape: (69, 2, 64)"),
    "key columns": ({"key": torch.zeros(70, 2, 1025)}, "key shape: (70, 2, 1025)"),
    "query heads": ({"query": torch.zeros(5, 7, 64)}, "query heads: 7"),
    "int64 lengths": ({"kv_lens": torch.tensor([1, 1])}, "kv_lens dtype: torch.int64"),
    "table entry": ({"block_table": torch.tensor([[0, 7], [1, 0]]).int()}, "block_table[0, 1]: 7"),
    "first_keys": ({"first_keys": torch.tensor([0, 71]).int()}, "first_keys[1]: 71 is not accepted; it must be in [0"),
    "no room": ({"first_keys": torch.tensor([0, 68]).int()}, "kv_lens[1]: 3 is not accepted; it must be in [0, 2]"),
    "empty pages": ({"key": torch.zeros(7, 0, 2, 64), "value": torch.zeros(7, 0, 2, 64)}, "key page_size: 0"),
}  # fmt: skip


@pytest.mark.parametrize("module", [ops, spec], ids=["ops", "spec"])
@pytest.mark.parametrize("name", BAD)
def test_bad_input(name, module):
    changes, message = BAD[name]
    rows, starts, lens = torch.randn(70, 2, 64), torch.tensor([0, 2, 5]).int(), torch.tensor([60, 3]).int()
    in_pages = name in ("table entry", "first_keys", "no room", "empty pages")
    arguments = {"query": torch.randn(5, 8, 64), "key": rows, "value": rows, "cu_seqlens_q": starts, "kv_lens": lens}
    if in_pages:
        pages = rows.unflatten(0, (2, 35))
        arguments |= {"key": pages, "value": pages, "block_table": torch.tensor([[0, 1], [1, 0]]).int()}
    else:
        arguments["cu_seqlens_k"] = torch.tensor([0, 60, 70]).int()
    function = module.attend_pages if in_pages else module.attend_linear
    with pytest.raises(ValueError) as caught:
        function(**arguments | changes, softmax_scale=1.0)
    assert message in str(caught.value)
