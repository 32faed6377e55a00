"""On a real GPU: the operations against the specification on the CPU, inside CUDA graphs, beside other work."""

import pytest
import torch

from deepseek_flash_cache import ops, spec
from deepseek_flash_cache.append_stream import AppendStream
from tests.cuda.test_storage import same
from tests.fixtures import DTYPES, FP8, compute_dtype, empty_cache, hostile_cache, layout_of, raw
from tests.ops.test_copies import PAIRS, numbered_pool

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU, or torch was built without CUDA"),
]


@pytest.fixture(autouse=True)
def served():
    text = ops.backend("append", "cuda", layout_of(torch.bfloat16, tile_format="swizzle"))
    if not text.startswith("CUDA"):
        pytest.skip(text)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("sizes", "extent"), [((128, 128), 1), ((80, 112), 4), ((192, 128), 2)])
def test_append_pack_and_unpack(dtype, sizes, extent):
    layout = layout_of(dtype, 3, sizes, extent=extent, tile_order="zorder", tile_format="swizzle")
    random = torch.Generator().manual_seed(1)
    key, value = (torch.randn(300, 3, size, generator=random).to(compute_dtype(layout)) for size in sizes)
    slots = torch.randperm(3 * layout.page_tokens, generator=random)[:90]
    slots[::7] = -1
    scales = (0.03, 2.5) if dtype in FP8 else (1.0, 1.0)
    want, got = empty_cache(layout, 3), empty_cache(layout, 3).cuda()
    spec.append(key, value, want, slots, layout, *scales)
    ops.append(key.cuda(), value.cuda(), got, slots.cuda(), layout, *scales)
    assert same(got.cpu(), want, dtype)
    pages = ops.pack(key.cuda(), value.cuda(), layout, *scales)
    assert same(pages.cpu(), spec.pack(key, value, layout, *scales), dtype)
    for rows, given in zip(ops.unpack(pages, 300, layout), spec.unpack(pages.cpu(), 300, layout), strict=True):
        assert torch.equal(raw(rows.cpu()), raw(given))


@pytest.mark.parametrize("name", PAIRS)
def test_copy_blocks(name):
    layout = layout_of(torch.bfloat16, 3, (192, 128), tile_format="swizzle")
    pairs = torch.tensor(PAIRS[name], dtype=torch.int64).view(-1, 2)
    want, got = numbered_pool(layout, 7), numbered_pool(layout, 7).cuda()
    spec.copy_blocks(want, want, pairs, layout)
    ops.copy_blocks(got, got, pairs.cuda(), layout)
    assert torch.equal(raw(got).cpu(), raw(want))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, *FP8], ids=str)
@pytest.mark.parametrize("sizes", [(64, 64), (128, 128), (256, 256)])
def test_attend(dtype, sizes):
    case = hostile_cache(layout_of(dtype, 2, sizes, tile_format="swizzle"))
    if "CUDA" not in ops.backend("attend", "cuda", case.layout):
        pytest.skip(ops.backend("attend", "cuda", case.layout))
    want = spec.attend(*case.tensors, case.layout, softmax_scale=0.09, softcap=30.0)
    tensors = [tensor.cuda() for tensor in case.tensors]
    got = ops.attend(*tensors, case.layout, softmax_scale=0.09, softcap=30.0, return_lse=True)
    atol = 2e-3 if case.query.dtype == torch.float16 else 1.5e-2
    torch.testing.assert_close(got.out.cpu(), want.out, atol=atol, rtol=0)
    torch.testing.assert_close(got.lse.cpu(), want.lse, atol=atol, rtol=1e-3)


def test_a_graph_of_attend_replays_with_other_lengths():
    case = hostile_cache(layout_of(torch.float16, 2, (128, 128), tile_format="swizzle"), (900, 65, 1), (1, 1, 1))
    if "CUDA" not in ops.backend("attend", "cuda", case.layout):
        pytest.skip(ops.backend("attend", "cuda", case.layout))
    query, cache, table, starts, lens = (tensor.cuda() for tensor in case.tensors)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = ops.attend(query, cache, table, starts, lens, case.layout, softmax_scale=0.09)
    for lengths in ([900, 65, 1], [0, 64, 1], [1, 0, 0]):
        lens.copy_(torch.tensor(lengths))
        graph.replay()
        want = spec.attend(*case.tensors[:4], torch.tensor(lengths).int(), case.layout, softmax_scale=0.09)
        torch.testing.assert_close(got.out.cpu(), want.out, atol=2e-3, rtol=0)


def test_a_graph_replays_with_other_slots():
    """Captured before the kernel was ever launched here: its cubin is loaded while the stream is captured."""
    layout = layout_of(torch.float16, 5, tile_format="swizzle")
    key, slots = torch.randn(4, 5, 64).half().cuda(), torch.tensor([1, 2, -1, -1]).cuda()
    cache, graph = empty_cache(layout, 2).cuda(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ops.append(key, key, cache, slots, layout)
    for values in ([5, 70, -1, 9], [0, 64, 3, 127], [-1, 1 << 40, 3, 4]):
        slots.copy_(torch.tensor(values))
        cache.copy_(empty_cache(layout, 2))
        graph.replay()
        inside = torch.tensor([slot if slot < 128 else -1 for slot in values])
        want = empty_cache(layout, 2)
        spec.append(key.cpu(), key.cpu(), want, inside, layout)
        assert torch.equal(raw(cache).cpu(), raw(want))


def test_appends_beside_the_computation():
    layout = layout_of(torch.bfloat16, 8, (128, 128), tile_format="swizzle")
    cache, side = empty_cache(layout, 64).cuda(), AppendStream("cuda")
    work = torch.randn(2048, 2048, device="cuda")
    for step in range(20):
        rows = torch.full((200, 8, 128), float(step), dtype=torch.bfloat16, device="cuda")
        side.append(rows, rows, cache, torch.arange(200 * step, 200 * (step + 1)).cuda(), layout)
        work = torch.tanh(work @ work)
        side.wait()
    key, _ = ops.unpack(cache, 4000, layout)
    assert torch.equal(key[:, 0, 0].float().cpu(), torch.arange(20.0).repeat_interleave(200))
