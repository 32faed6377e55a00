"""When a request reads too little."""

import math

import pytest

from deepseek_flash_cache.sparse import Guard, Level


def watched():
    switches = []
    return Guard(on_switch=lambda level, reason: switches.append((level, reason))), switches


def feed(guard, missed_mass, steps):
    for _ in range(steps):
        guard.observe(missed_mass)


def test_ordinary_text_keeps_the_plan():
    guard, switches = watched()
    feed(guard, 0.036, 500)
    assert guard.level is Level.PLANNED
    assert not switches


def test_a_budget_too_small_is_doubled_and_comes_back():
    guard, switches = watched()
    feed(guard, 0.15, 10)
    assert guard.factor == 2.0
    feed(guard, 0.07, 300)
    assert guard.level is Level.DOUBLED  # between the thresholds nothing changes
    feed(guard, 0.01, 300)
    assert switches == [(Level.DOUBLED, "missed_mass"), (Level.PLANNED, "calm")]


def test_far_too_small_goes_dense_and_stays():
    guard, switches = watched()
    feed(guard, 0.3, 10)
    assert guard.factor == math.inf
    feed(guard, 0.0, 100)
    assert switches == [(Level.DENSE, "missed_mass")]


def test_doubling_that_does_not_help_goes_dense():
    guard, switches = watched()
    feed(guard, 0.15, 10)
    feed(guard, 0.25, 10)
    assert [level for level, _ in switches] == [Level.DOUBLED, Level.DENSE]


def test_one_bad_step_is_not_an_alarm():
    guard, switches = watched()
    feed(guard, 0.02, 100)
    guard.observe(0.9)
    assert guard.level is Level.PLANNED
    assert not switches


def test_nan_goes_dense_at_once():
    guard, switches = watched()
    guard.observe(math.nan)
    assert switches == [(Level.DENSE, "nan")]


@pytest.mark.parametrize("reason", ["error", "length"])
def test_other_triggers_are_counted_once(reason):
    guard, switches = watched()
    guard.trip(reason)
    guard.trip(reason)
    assert switches == [(Level.DENSE, reason)]
