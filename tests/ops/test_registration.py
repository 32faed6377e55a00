"""The operations as torch sees them: fake implementations, torch.compile, other devices, no binary."""

import inspect
import os
import subprocess
import sys

import pytest
import torch

from deepseek_flash_cache import ops, spec
from tests.fixtures import empty_cache, hostile_cache, layout_of, raw

LAYOUT = layout_of()
opcheck = getattr(torch.library, "opcheck", None)


def attend_arguments():
    case = hostile_cache(LAYOUT, (65, 3), (2, 3))
    out, lse = torch.zeros(5, 8, 64), torch.zeros(8, 5)
    mask = (0.125, True, -1, -1, 0.0, 1.0, 1.0, 0)
    return (*case.tensors, None, LAYOUT.id, *mask, out, lse, None, None)


def plain_arguments(*first):
    mask = (0.125, True, -1, -1, 0.0, 1.0, 1.0)
    return (torch.randn(5, 8, 64), *first, None, *mask, torch.zeros(5, 8, 32), torch.zeros(8, 5))


def arguments(name):
    key = torch.randn(3, 2, 64)
    rows, starts, lens = torch.randn(70, 2, 96), torch.tensor([0, 2, 5]).int(), torch.tensor([60, 3]).int()
    key_rows, value_rows = rows[..., :64], rows[..., 64:]
    pages = [part.unflatten(0, (7, 10)) for part in (key_rows, value_rows)]
    table = torch.arange(14).int().view(2, 7) % 7
    cache = empty_cache(LAYOUT, 3, 0)
    return {
        "append": lambda: (key, key.clone(), cache, torch.tensor([0, -1, 65]), LAYOUT.id, 1.0, 1.0),
        "attend": attend_arguments,
        "attend_linear": lambda: plain_arguments(key_rows, value_rows, starts, torch.tensor([0, 60, 70]).int(), lens),
        "attend_pages": lambda: plain_arguments(*pages, table, starts, lens, None),
        "pack": lambda: (key, key.clone(), LAYOUT.id, 1.0, 1.0),
        "unpack": lambda: (cache, 100, LAYOUT.id),
        "copy_blocks": lambda: (cache, empty_cache(LAYOUT, 2, 0), torch.tensor([[2, 0]]), LAYOUT.id),
    }[name]()


@pytest.mark.skipif(opcheck is None, reason="torch.library.opcheck came with torch 2.4")
@pytest.mark.parametrize("name", ops.OPERATIONS)
def test_opcheck(name):
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    opcheck(getattr(torch.ops.dfc, name).default, arguments(name), test_utils=tests)


def step(key, value, cache, slots, query, table, starts, lens):
    ops.append(key * 2, value, cache, slots, LAYOUT)
    return ops.attend(query, cache, table, starts, lens, LAYOUT, softmax_scale=0.125, return_lse=True).out + 1


@pytest.mark.skipif(opcheck is None, reason="torch before 2.4 does not compile frozen dataclasses")
def test_compile_without_graph_breaks():
    results = []
    for run in (step, torch.compile(step, fullgraph=True, backend="aot_eager")):
        case = hostile_cache(LAYOUT, (65,), (1,))
        key = torch.randn(1, 2, 64, generator=torch.Generator().manual_seed(3))
        slot = case.block_table[0, 1].long() * 64
        out = run(key, key, case.cache, slot[None], *[case.tensors[i] for i in (0, 2, 3, 4)])
        results.append((out, raw(case.cache)))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


def test_meta_tensors_have_shapes_only():
    key = torch.zeros(100, 2, 64, device="meta")
    pages = ops.pack(key, key, LAYOUT)
    assert pages.shape == LAYOUT.cache_shape(2) and pages.is_meta
    assert [t.shape for t in ops.unpack(pages, 70, LAYOUT)] == [(70, 2, 64), (70, 2, 64)]


def test_backend_says_what_runs_and_why():
    assert "no compiled attend for xpu" in ops.backend("attend", "xpu:1", LAYOUT)
    assert ops.backend("attend", "cuda:1", LAYOUT).startswith("spec (PyTorch): ")
    assert "swizzle" in ops.backend("attend", "cpu", layout_of(tile_format="swizzle")) or ops._C is None
    with pytest.raises(ValueError, match="op: scale is not accepted"):
        ops.backend("scale", "cpu", LAYOUT)


SCRIPT = """
import sys, warnings
{before}
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    from deepseek_flash_cache import ops
from tests.fixtures import exact_attention, hostile_cache, layout_of, assert_close
case = hostile_cache(layout_of(), (65, 3), (2, 1))
got = ops.attend(*case.tensors, case.layout, softmax_scale=0.125)
assert_close(got.out, exact_attention(case, 0.125)[0])
key, _ = ops.unpack(ops.pack(case.keys[0].float(), case.values[0].float(), case.layout), 65, case.layout)
ops.copy_blocks(case.cache, case.cache, case.block_table[:1, :2].long(), case.layout)
assert (key == case.keys[0]).all()
print(ops.backend("attend", "cpu", case.layout), "|", *[w.message for w in caught if "specification" in str(w.message)])
"""


def run_script(before: str = "", **environment: str) -> str:
    command = [sys.executable, "-c", SCRIPT.format(before=before)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, check=True)
    return done.stdout.strip()


@pytest.mark.slow
def test_without_the_binary_the_specification_runs_and_one_warning_says_how_to_build_it():
    text = run_script("sys.modules['deepseek_flash_cache._C'] = None")
    assert text.startswith("spec (PyTorch)")
    assert text.split("|")[1].count("pip install -e .") == 1


@pytest.mark.slow
def test_force_spec_is_silent():
    assert run_script(DFC_FORCE_SPEC="1") == "spec (PyTorch): DFC_FORCE_SPEC=1 |"


@pytest.mark.skipif(ops._C is None, reason="the extension is not built")
@pytest.mark.slow
def test_the_environment_chooses_the_isa_level():
    for level in ops._C.isa_levels():
        assert run_script(DFC_CPU_ISA=level).startswith(f"C++ ({level})")


@pytest.mark.skipif(ops._C is None, reason="the extension is not built")
def test_an_unusable_isa_level_is_refused_by_name():
    with pytest.raises(subprocess.CalledProcessError) as caught:
        run_script(DFC_CPU_ISA="sse9")
    assert "ValueError: DFC_CPU_ISA: sse9 is not accepted; it must be one of portable" in caught.value.stderr


def test_public_functions_take_what_the_specification_takes():
    for name in ops.OPERATIONS:
        ours, theirs = (list(inspect.signature(getattr(module, name)).parameters) for module in (ops, spec))
        assert [parameter for parameter in ours if parameter in theirs] == theirs, name
