"""Conversions against torch: every 16-bit value, every fp8 pair, and all floats at which rounding decides."""

import ctypes

import pytest
import torch

from tests.emu.build import SELFTEST, build
from tests.emu.emulator import Emulator

WIDE = {"f16": torch.float16, "bf16": torch.bfloat16}
FP8 = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
BITS = torch.arange(1 << 16, dtype=torch.int32)
FLOAT32 = torch.finfo(torch.float32)


class Args(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("data", "in", "counter")]


@pytest.fixture(scope="module")
def emulator():
    return Emulator(build("dfc_selftest", SELFTEST))


def probe(emulator, kernel, given):
    blocks = (len(given) + 63) // 64
    given = torch.nn.functional.pad(given.view(torch.int32), (0, blocks * 64 - len(given)))
    data = torch.zeros(2 * len(given), dtype=torch.int32)
    emulator.configure(detect_races=False)
    emulator.clear_buffers()
    emulator.launch(kernel, (blocks, 1, 1), 64, 0, Args(data.data_ptr(), given.data_ptr(), 0))
    return data


def words(data):
    """The low and the high 16 bits of every word."""
    return data.view(torch.int16).view(-1, 2).unbind(-1)


def assert_same(found, expected):
    """Equal, the sign of zero too; NaN is NaN."""
    assert torch.equal(found.isnan(), expected.isnan())
    number = ~expected.isnan()
    assert torch.equal(found[number], expected[number])
    assert torch.equal(found[number].signbit(), expected[number].signbit())


def values(dtype):
    bits = BITS[: 1 << torch.finfo(dtype).bits].to(torch.int16 if torch.finfo(dtype).bits == 16 else torch.uint8)
    return bits.view(dtype).float()


def deciding_floats(dtype):
    """All values of `dtype`, all midpoints between neighbours, and what lies one float beside each."""
    numbers = values(dtype)
    numbers = numbers[numbers.isfinite()].unique()
    beyond = numbers[-1:] + (numbers[-1:] - numbers[-2:-1]) / 2
    middles = torch.cat([(numbers[1:].double() + numbers[:-1].double()).div(2).float(), beyond, -beyond])
    exact = torch.cat([numbers, middles])
    up, down = (torch.nextafter(exact, torch.full_like(exact, limit)) for limit in (FLOAT32.max, FLOAT32.min))
    special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, FLOAT32.max, FLOAT32.tiny, 1e-45])
    return torch.cat([exact, up, down, special])


@pytest.mark.parametrize("name", WIDE)
def test_every_16_bit_value_is_widened_as_in_torch(emulator, name):
    pairs = BITS | (BITS.flip(0) << 16)
    found = probe(emulator, f"probe_widen_{name}", pairs).view(torch.float32).view(-1, 2)
    numbers = values(WIDE[name])
    assert_same(found[:, 0], numbers)
    assert_same(found[:, 1], numbers.flip(0))


@pytest.mark.parametrize("name", WIDE)
def test_rounding_to_16_bits_is_that_of_torch(emulator, name):
    floats = deciding_floats(WIDE[name])
    low, high = words(probe(emulator, f"probe_narrow_{name}", floats)[: len(floats)])
    assert_same(low.contiguous().view(WIDE[name]).float(), floats.to(WIDE[name]).float())
    assert_same(high.contiguous().view(WIDE[name]).float(), (-floats).to(WIDE[name]).float())


@pytest.mark.parametrize("name", FP8)
def test_every_fp8_pair_is_widened_as_in_torch(emulator, name):
    halves, bfloats = probe(emulator, f"probe_widen_{name}", BITS).view(-1, 2).unbind(-1)
    numbers = values(FP8[name])
    for found, dtype in ((halves, torch.float16), (bfloats, torch.bfloat16)):
        low, high = words(found.contiguous())
        assert_same(low.contiguous().view(dtype).float(), numbers[BITS & 0xFF])
        assert_same(high.contiguous().view(dtype).float(), numbers[BITS >> 8])


@pytest.mark.parametrize("name", FP8)
def test_rounding_to_fp8_is_that_of_torch_and_saturates(emulator, name):
    floats, dtype = deciding_floats(FP8[name]), FP8[name]
    largest = torch.finfo(dtype).max
    pairs = probe(emulator, f"probe_narrow_{name}", floats)[: len(floats)]
    expected = floats.clamp(-largest, largest).to(dtype).float()
    assert_same((pairs & 0xFF).to(torch.uint8).view(dtype).float(), expected)
    assert_same((pairs >> 8).to(torch.uint8).view(dtype).float(), -expected)
