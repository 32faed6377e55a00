"""Appends beside the computation: what waits for what, with streams that write down what they are told."""

from contextlib import contextmanager

import pytest
import torch

from deepseek_flash_cache import append_stream, ops, spec
from deepseek_flash_cache.append_stream import AppendStream
from tests.fixtures import empty_cache, layout_of, raw

LAYOUT = layout_of(torch.bfloat16, 2)


class Recorder:
    """Stands in for torch.cuda: streams and events with names, and a diary."""

    def __init__(self):
        self.diary, self.names, self.active = [], iter(["side"]), "compute"
        self.events = iter(["ready", "done"])

    def new(self):
        return Stream(self, next(self.names))

    def current(self):
        return Stream(self, self.active)

    def event(self):
        return Event(self, next(self.events))

    @contextmanager
    def use(self, stream):
        before, self.active = self.active, stream.name
        yield
        self.active = before

    def keep(self, tensor, stream):
        self.diary.append(("keep", tuple(tensor.shape), stream.name))


class Stream:
    def __init__(self, recorder, name):
        self.recorder, self.name = recorder, name

    def wait_event(self, event):
        self.recorder.diary.append(("wait", self.name, event.name))


class Event:
    def __init__(self, recorder, name):
        self.recorder, self.name = recorder, name

    def record(self, stream):
        self.recorder.diary.append(("record", stream.name, self.name))


@pytest.fixture
def recorder(monkeypatch):
    recorder = Recorder()

    def append(*arguments):
        recorder.diary.append(("append", recorder.active, arguments[3].tolist()))
        ops.append(*arguments)

    monkeypatch.setattr(append_stream, "ops", type("Ops", (), {"append": staticmethod(append)}))
    return recorder


def rows(count):
    return torch.randn(count, 2, 64).bfloat16(), torch.randn(count, 2, 64).bfloat16(), torch.arange(count)


def order(recorder):
    return [entry for entry in recorder.diary if entry[0] != "keep"]


def test_append_waits_for_the_rows_and_readers_wait_for_the_append(recorder):
    side = AppendStream("cpu", recorder)
    key, value, slots = rows(3)
    side.append(key, value, empty_cache(LAYOUT, 1), slots, LAYOUT)
    assert order(recorder) == [
        ("record", "compute", "ready"),
        ("wait", "side", "ready"),
        ("append", "side", [0, 1, 2]),
        ("record", "side", "done"),
    ]
    side.wait()
    assert order(recorder)[4:] == [("wait", "compute", "done")]


def test_several_appends_are_waited_for_once(recorder):
    side = AppendStream("cpu", recorder)
    for _ in range(2):
        side.append(*rows(2)[:2], empty_cache(LAYOUT, 1), torch.arange(2), LAYOUT)
    side.wait()
    side.wait()
    assert sum(entry[:2] == ("wait", "compute") for entry in recorder.diary) == 1
    assert recorder.diary[-1] == ("wait", "compute", "done")


def test_the_rows_outlive_the_side_stream(recorder):
    """The allocator would give their memory to the next layer while the append still reads it."""
    AppendStream("cpu", recorder).append(*rows(3)[:2], empty_cache(LAYOUT, 1), torch.arange(3), LAYOUT)
    kept = [entry for entry in recorder.diary if entry[0] == "keep"]
    assert kept == [("keep", shape, "side") for shape in ((3, 2, 64), (3, 2, 64), LAYOUT.cache_shape(1), (3,))]


def test_rows_of_a_reused_prefix_are_not_written_again(recorder):
    side, cache, expected = AppendStream("cpu", recorder), empty_cache(LAYOUT, 2), empty_cache(LAYOUT, 2)
    key, value, slots = rows(70)
    side.append(key, value, cache, slots, LAYOUT, reused_tokens=64)
    spec.append(key[64:], value[64:], expected, slots[64:], LAYOUT)
    assert torch.equal(raw(cache), raw(expected))
    side.append(key, value, cache, slots, LAYOUT, reused_tokens=70)
    assert sum(entry[0] == "append" for entry in recorder.diary) == 1


@pytest.mark.parametrize("reused", [-1, 4])
def test_more_reused_tokens_than_rows_are_refused(recorder, reused):
    with pytest.raises(ValueError, match=f"reused_tokens: {reused} is not accepted; it must be in \\[0, 3\\]"):
        AppendStream("cpu", recorder).append(
            *rows(3)[:2], empty_cache(LAYOUT, 1), torch.arange(3), LAYOUT, reused_tokens=reused
        )
    assert recorder.diary == []
