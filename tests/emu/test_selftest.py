"""The emulator finds every planted bug on every schedule, and lets good kernels pass with the right values."""

import ctypes
import re

import pytest
import torch

from tests.emu.build import SELFTEST, build
from tests.emu.emulator import EAGER, LAZY, RANDOM, Emulator, EmulatorError
from tests.emu.expected import BAD, GOOD, SEVERAL_BLOCKS

SEEDS = range(20)
SHARED_BYTES = 4096
IN = torch.arange(4096, dtype=torch.int32)


class Args(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("data", "in", "counter")]


@pytest.fixture(scope="module")
def emulator():
    return Emulator(build("dfc_selftest", SELFTEST))


def run(emulator, kernel, seed, completion):
    data, counter = torch.zeros(4096, dtype=torch.int32), torch.zeros(4, dtype=torch.int32)
    emulator.configure(seed, completion)
    emulator.clear_buffers()
    for name, tensor, writable in (("data", data, True), ("in", IN, False), ("counter", counter, True)):
        emulator.register(name, tensor, writable)
    blocks = 3 if kernel in SEVERAL_BLOCKS else 1
    emulator.launch(kernel, (blocks, 1, 1), 64, SHARED_BYTES, Args(data.data_ptr(), IN.data_ptr(), counter.data_ptr()))
    return data


def test_every_kernel_of_the_self_test_is_listed(emulator):
    planted = [name for name in emulator.kernels if name.startswith(("good_", "bad_"))]
    assert sorted(planted) == sorted([*GOOD, *BAD])


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
    with pytest.raises(EmulatorError, match=r"block \(0,0,0\) thread \d+ \(warp \d lane \d+\) bad_shared\.h:\d+: "):
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
