"""Bytes that left the pool: any changed byte, any other expectation, is a HeaderMismatch."""

from dataclasses import replace

import pytest

from deepseek_flash_cache.layout import BlockHeader, HeaderMismatch
from deepseek_flash_cache.layout.header import HEADER_BYTES
from tests.fixtures import layout_of

HEADER = BlockHeader(layout_of().id, bytes(range(32)), "sgm1", "dense")
PAYLOAD = bytes(range(200))
RECORD = HEADER.seal(PAYLOAD)


def test_a_sealed_record_opens():
    assert HEADER.open(RECORD) == PAYLOAD
    assert HEADER.open(HEADER.seal(b"")) == b""


def test_each_corrupted_byte_is_a_mismatch():
    for place in range(len(RECORD)):
        for flip in (1, 0x80):
            damaged = bytearray(RECORD)
            damaged[place] ^= flip
            with pytest.raises(HeaderMismatch):
                HEADER.open(bytes(damaged))


def test_each_truncated_length_is_a_mismatch():
    for length in range(len(RECORD)):
        with pytest.raises(HeaderMismatch):
            HEADER.open(RECORD[:length])
    with pytest.raises(HeaderMismatch, match="payload bytes"):
        HEADER.open(RECORD + b"\0")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("layout_id", layout_of(kv_heads=4).id),
        ("model_digest", bytes(32)),
        ("gate_kind", "sgm2"),
        ("gate_kind", ""),
        ("mode", "sgm1/0.125"),
    ],
)
def test_another_expectation_is_a_mismatch_that_names_the_field(field, value):
    with pytest.raises(HeaderMismatch, match=field) as caught:
        replace(HEADER, **{field: value}).open(RECORD)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("field", "value"), [("model_digest", b"short"), ("gate_kind", "x" * 97), ("mode", "a\0b"), ("layout_id", "bicl0")]
)
def test_values_that_cannot_be_written_are_refused(field, value):
    with pytest.raises(ValueError):
        replace(HEADER, **{field: value})


def test_the_header_is_small():
    assert HEADER_BYTES < 512
