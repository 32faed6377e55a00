"""A kernel with all that attention needs (tiles by cp.async, ldmatrix, mma, a merge of warps) against torch."""

import ctypes
import math
import time

import pytest
import torch

from tests.emu.build import SELFTEST, build
from tests.emu.emulator import EAGER, LAZY, RANDOM, Emulator, EmulatorError

SHARED_BYTES = 4 * 64 * 256 + 16 * 256
HEAD = 128


class Args(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("q", "k", "v", "out")] + [
        ("scale", ctypes.c_float), ("num_keys", ctypes.c_int)
    ]  # fmt: skip


@pytest.fixture(scope="module")
def emulator():
    return Emulator(build("dfc_selftest", SELFTEST))


def inputs(num_keys):
    generator = torch.Generator().manual_seed(num_keys)
    q, k, v = (torch.randn(rows, HEAD, generator=generator).half() for rows in (16, num_keys, num_keys))
    return q, k, v, torch.full((16, HEAD), float("nan"))


def attend(emulator, tensors, shared_bytes=SHARED_BYTES):
    q, k, v, out = tensors
    emulator.clear_buffers()
    for name, tensor in zip(("q", "k", "v", "out"), tensors, strict=True):
        emulator.register(name, tensor, writable=tensor is out)
    scale = math.log2(math.e) / math.sqrt(HEAD)
    args = Args(q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr(), scale, len(k))
    emulator.launch("attention", (1, 1, 1), 128, shared_bytes, args)
    return out


def expected(q, k, v):
    return torch.softmax(q.float() @ k.float().T / math.sqrt(HEAD), -1) @ v.float()


@pytest.mark.parametrize("num_keys", [1, 63, 64, 65, 300])
@pytest.mark.parametrize("completion", [EAGER, LAZY, RANDOM])
def test_attention_is_right_on_every_schedule(emulator, num_keys, completion):
    for seed in range(3):
        emulator.configure(seed, completion)
        tensors = inputs(num_keys)
        torch.testing.assert_close(attend(emulator, tensors), expected(*tensors[:3]), atol=2e-3, rtol=0)


def test_shared_memory_that_is_too_small_is_found(emulator):
    emulator.configure()
    with pytest.raises(EmulatorError, match="shared memory out of bounds"):
        attend(emulator, inputs(64), SHARED_BYTES - 16)


def test_its_accesses_cost_what_they_must(emulator):
    emulator.clear_trace()
    emulator.configure(trace=True)
    attend(emulator, inputs(256))
    trace = emulator.trace()
    emulator.configure()
    wide = [entry for entry in trace if entry["kind"] in ("ldmatrix", "cp.async target")]
    assert len(wide) == 4
    assert all(entry["wavefronts"] == entry["ideal_wavefronts"] for entry in wide)
    copies = [entry for entry in trace if entry["kind"] == "cp.async source"]
    assert sum(entry["bytes"] for entry in copies) == (16 + 2 * 256) * HEAD * 2


def time_of_block(emulator, **options):
    """Seconds for one block of 128 threads and 1024 keys: printed, since machines differ."""
    emulator.configure(1, LAZY, **options)
    tensors = inputs(1024)
    attend(emulator, tensors)
    start = time.perf_counter()
    for _ in range(3):
        attend(emulator, tensors)
    return (time.perf_counter() - start) / 3


def test_a_block_of_1024_keys_takes_milliseconds(emulator):
    plain, watched = (time_of_block(emulator, detect_races=races) for races in (False, True))
    print(f"1024 keys: {plain * 1e3:.1f} ms, with race detection {watched * 1e3:.1f} ms")
    assert plain < 0.2
    assert watched < 0.5
