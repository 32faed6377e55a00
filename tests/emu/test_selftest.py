"""The emulator finds every planted bug on every schedule, and lets good kernels pass with the right values."""

import ctypes
import re

import pytest
import torch

from tests.emu.build import build
from tests.emu.emulator import EAGER, LAZY, RANDOM, Emulator, EmulatorError

SEEDS = range(20)
SOURCES = ("csrc/emu/selftest/good.cpp", "csrc/emu/selftest/bad.cpp")
SHARED_BYTES = 4096
IN = torch.arange(4096, dtype=torch.int32)
THREAD = torch.arange(64)
LANE = THREAD % 32

BAD = {
    "bad_no_sync_block": "uninitialised|race: read after write",
    "bad_no_sync_block_initialised": "race: (read after write|write after read)",
    "bad_overwrite_while_read": "race: (write after read|read after write)",
    "bad_overwrite_read_by_many": "race: (write after read|read after write)",
    "bad_no_sync_warp": "race: (read after write|write after read)",
    "bad_two_writers": "race: write after write",
    "bad_uninitialised": "read of uninitialised shared memory",
    "bad_shared_bounds": "shared memory out of bounds",
    "bad_shared_alignment": "misaligned access of shared memory",
    "bad_global_bounds": r"global store out of bounds: .*nearest buffer '\w+'",
    "bad_global_alignment": "misaligned global load",
    "bad_read_only": "global store to read-only buffer 'in'",
    "bad_stale_read": "use ldg_coherent",
    "bad_divergent_matrix": "DEADLOCK.*ldmatrix",
    "bad_divergent_shuffle": "divergent warp: shfl_xor",
    "bad_early_exit": "DEADLOCK.*shfl_xor",
    "bad_divergent_barrier": "__syncthreads reached at different places",
    "bad_named_count": "named barrier 1: (32|64) threads here, (32|64) in other threads|DEADLOCK.*named barrier",
    "bad_named_alone": "DEADLOCK.*named barrier",
    "bad_named_no_order": "uninitialised|race: (read after write|write after read)",
    "bad_no_wait": r"in flight \(missing wait\)",
    "bad_wait_without_sync": "race: read after write|in flight|uninitialised",
    "bad_wait_off_by_one": r"in flight \(missing wait\)",
    "bad_exit_in_flight": "in flight",
    "bad_never_committed": "never committed",
    "bad_bulk_no_wait": "in flight|race: read after write",
    "bad_bulk_init_not_visible": "no mbarrier was initialised|before its initialisation is visible",
    "bad_bulk_overwrite": "race: write after read|in flight|DEADLOCK.*mbarrier",
    "bad_bulk_wrong_bytes": "DEADLOCK.*mbarrier",
    "bad_too_many_arrivals": "more arrivals than its count",
    "bad_blocks_write_the_same": "race between blocks: write of bytes that block . wrote",
    "bad_no_fence": "race between blocks: read",
    "bad_lost_update": "race between blocks",
    "bad_shared_lost_update": "race: ",
    "bad_atomic_read_early": "race: ",
}


def votes():
    odd, up = 0xAA, torch.where(LANE >= 3, LANE - 3, LANE)
    return odd + 1000 + up * 10000 + 7 * 1000000


GOOD = {
    "good_reverse": 63 - THREAD,
    "good_neighbour": THREAD ^ 1,
    "good_own_copy": 4 * THREAD,
    "good_zero_fill": 4 * THREAD + 1,
    "good_two_stages": 2 * (63 - THREAD) * 4 + 256,
    "good_bulk_ring": 6 * (63 - THREAD) + 256 * 15,
    "good_votes": votes(),
    "good_named_barrier": torch.where(THREAD < 32, 31 - LANE + 7, 0),
    "good_last_block": torch.full((64,), 6),
    "good_shared_counter": torch.full((64,), 63 * 32),
    "good_matrix": (torch.arange(16)[:, None] + torch.arange(16)).flatten(),
}
ONE_BLOCK = set(GOOD) - {"good_last_block"} | set(BAD) - {
    "bad_blocks_write_the_same", "bad_no_fence", "bad_lost_update", "bad_stale_read"
}  # fmt: skip


class Args(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("data", "in", "counter")]


@pytest.fixture(scope="module")
def emulator():
    return Emulator(build("dfc_selftest", SOURCES))


def run(emulator, kernel, seed, completion):
    data, counter = torch.zeros(4096, dtype=torch.int32), torch.zeros(4, dtype=torch.int32)
    emulator.configure(seed, completion)
    emulator.clear_buffers()
    for name, tensor, writable in (("data", data, True), ("in", IN, False), ("counter", counter, True)):
        emulator.register(name, tensor, writable)
    blocks = 1 if kernel in ONE_BLOCK else 3
    emulator.launch(kernel, (blocks, 1, 1), 64, SHARED_BYTES, Args(data.data_ptr(), IN.data_ptr(), counter.data_ptr()))
    return data


def test_every_kernel_of_the_self_test_is_listed(emulator):
    assert sorted(emulator.kernels) == sorted([*GOOD, *BAD])


@pytest.mark.parametrize("completion", [EAGER, LAZY, RANDOM])
@pytest.mark.parametrize("kernel", BAD)
def test_a_planted_bug_is_found_on_every_schedule(emulator, kernel, completion):
    for seed in SEEDS:
        with pytest.raises(EmulatorError) as error:
            run(emulator, kernel, seed, completion)
        assert re.search(BAD[kernel], str(error.value)), (seed, str(error.value))
        assert kernel in str(error.value)


@pytest.mark.parametrize("completion", [EAGER, LAZY, RANDOM])
@pytest.mark.parametrize("kernel", GOOD)
def test_a_good_kernel_passes_on_every_schedule(emulator, kernel, completion):
    for seed in SEEDS:
        data = run(emulator, kernel, seed, completion)
        expected = GOOD[kernel].to(torch.int32)
        assert torch.equal(data[: len(expected)], expected), seed


def test_a_message_names_the_place(emulator):
    with pytest.raises(EmulatorError, match=r"block \(0,0,0\) thread \d+ \(warp \d lane \d+\) bad\.cpp:\d+: "):
        run(emulator, "bad_uninitialised", 0, LAZY)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nothing", (1, 1, 1), 64), "no such kernel"),
        (("good_reverse", (1, 1, 1), 256), "256 threads"),
        (("good_reverse", (1, 0, 1), 64), "grid"),
    ],
)
def test_launches_that_cannot_work_are_refused(emulator, arguments, message):
    with pytest.raises(EmulatorError, match=message):
        emulator.launch(*arguments, SHARED_BYTES, Args())


def test_wrong_argument_sizes_are_refused(emulator):
    with pytest.raises(EmulatorError, match="takes 24 bytes of arguments, not 4"):
        emulator.launch("good_reverse", (1, 1, 1), 64, SHARED_BYTES, ctypes.c_int(0))


def test_the_trace_counts_sectors_and_wavefronts(emulator):
    emulator.clear_trace()
    data = torch.zeros(4096, dtype=torch.int32)
    emulator.clear_buffers()
    emulator.configure(0, LAZY, trace=True)
    emulator.launch("good_own_copy", (1, 1, 1), 64, SHARED_BYTES, Args(data.data_ptr(), IN.data_ptr(), 0))
    found = {entry["kind"]: entry for entry in emulator.trace()}
    assert (found["cp.async source"]["requests"], found["cp.async source"]["bytes"]) == (2, 1024)
    assert found["cp.async source"]["sectors"] in (32, 34)  # 34 where the tensor starts within a sector
    assert found["cp.async target"]["wavefronts"] == found["cp.async target"]["ideal_wavefronts"] == 8
    assert found["shared load"]["wavefronts"] == 8  # one word of every 16 bytes: 4 lanes a bank
    assert found["shared load"]["ideal_wavefronts"] == 2
    emulator.configure()
