"""The header that every block carries once its bytes leave the pool (host tier, disk, another process).

Fixed little-endian record in front of the payload. A reader states what it expects; any difference is a
`HeaderMismatch`, which a tier counts as a miss, so old or foreign bytes are never served as an answer.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, fields

from deepseek_flash_cache.layout.page import Layout

MAGIC = b"DFCB"
HEADER_VERSION = 1
_TEXT_BYTES = 96
_DIGEST_BYTES = 32
_CHECKSUM_BYTES = 16
# magic, version, payload bytes, layout id, model digest, gate kind, computed-under mode, checksum
_RECORD = struct.Struct(f"<4sIQ{_TEXT_BYTES}s{_DIGEST_BYTES}s{_TEXT_BYTES}s{_TEXT_BYTES}s{_CHECKSUM_BYTES}s")
HEADER_BYTES = _RECORD.size


class HeaderMismatch(ValueError):
    """The bytes are not what the reader expects. `field` names the first difference."""

    def __init__(self, field: str, found: object, expected: object) -> None:
        super().__init__(f"{field}: found {found!r}, expected {expected!r}; treat the block as a miss")
        self.field = field


@dataclass(frozen=True)
class BlockHeader:
    """What a block's bytes mean. The layout id names dtype, block size, heads and widths.

    Parameters
    ----------
    layout_id : str
        `Layout.id`, at most 96 UTF-8 bytes; ValueError if unknown.
    model_digest : bytes
        32 bytes: SHA-256 of what makes the model this model.
    gate_kind : str
        Kind and version of the gate side data that follows the pages, "" for none.
    mode : str
        The mode that K and V were computed under, "dense" or the gate and its budget.
    """

    layout_id: str
    model_digest: bytes
    gate_kind: str = ""
    mode: str = "dense"

    def __post_init__(self) -> None:
        Layout.parse(self.layout_id)
        if not isinstance(self.model_digest, bytes) or len(self.model_digest) != _DIGEST_BYTES:
            raise ValueError(f"model_digest: {self.model_digest!r} is not accepted; it must be {_DIGEST_BYTES} bytes")
        for name in ("layout_id", "gate_kind", "mode"):
            text = getattr(self, name)
            if len(text.encode()) > _TEXT_BYTES or "\0" in text:
                raise ValueError(f"{name}: {text!r} is not accepted; at most {_TEXT_BYTES} UTF-8 bytes without NUL")

    def seal(self, payload: bytes) -> bytes:
        """Header and payload as one record, with a checksum over both. ValueError if the payload is not `bytes`."""
        if not isinstance(payload, bytes):
            raise ValueError(f"payload: {type(payload).__name__} is not accepted; it must be bytes")
        return self._record(payload, self._checksum(payload)) + payload

    def open(self, record: bytes) -> bytes:
        """The payload of a record sealed under an equal header. Raises HeaderMismatch for anything else."""
        if len(record) < HEADER_BYTES:
            raise HeaderMismatch("record length", len(record), f"at least {HEADER_BYTES}")
        magic, version, size, *texts, checksum = _RECORD.unpack_from(record)
        payload = record[HEADER_BYTES:]
        _expect("magic", magic, MAGIC)
        _expect("header version", version, HEADER_VERSION)
        _expect("payload bytes", len(payload), size)
        for field, found in zip(fields(self), texts, strict=True):
            _expect(field.name, found, _padded(getattr(self, field.name)))
        _expect("checksum", checksum, self._checksum(payload))
        return payload

    def _record(self, payload: bytes, checksum: bytes) -> bytes:
        texts = (_padded(getattr(self, field.name)) for field in fields(self))
        return _RECORD.pack(MAGIC, HEADER_VERSION, len(payload), *texts, checksum)

    def _checksum(self, payload: bytes) -> bytes:
        digest = hashlib.blake2b(self._record(payload, b""), digest_size=_CHECKSUM_BYTES)
        digest.update(payload)
        return digest.digest()


def _padded(value: str | bytes) -> bytes:
    raw, size = (value.encode(), _TEXT_BYTES) if isinstance(value, str) else (value, _DIGEST_BYTES)
    return raw.ljust(size, b"\0")


def _expect(field: str, found: object, expected: object) -> None:
    if found != expected:
        raise HeaderMismatch(field, found, expected)
