"""What decides whether K and V may be reused? The only place that knows the hash recipe.

    root    = SHA-256(scheme, layout, model, adapter, tenant)
    block i = SHA-256(root, mode of block i, key of block i-1, token ids of block i, images touching block i,
                      number of dense tokens before the selected ones if block i holds both)

Every field is tagged and length-prefixed, so that no two different identities serialise to the same bytes
(("org_1", "2345") and ("org_12345", "") are different tenants). Nothing depends on the process: the router, the
tiers and a second server compute the same keys.
"""

from __future__ import annotations

import hashlib
import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

TokenIds = Sequence[int]

DENSE = "dense"
HASHES = ("sha256",)
_SCHEME = b"dfc-block-key-1"
_LENGTH = struct.Struct("<Q")

MAX_SCALE = sys.float_info.max  # of an adapter; NaN and infinities lie outside


def require_hash(name: str) -> str:
    """Return ``name`` if it is an accepted hash, else raise ValueError.

    A fast non-cryptographic hash lets one tenant construct a collision with another tenant's prompt.
    """
    if name not in HASHES:
        raise ValueError(f"hash must be one of {HASHES}, got {name!r}: prefix keys must resist crafted collisions")
    return name


def _require_digest(name: str, value: object) -> None:
    if not isinstance(value, bytes) or not value:
        raise ValueError(f"{name} must be a non-empty bytes digest of the content, got {value!r}")


def _require_text(name: str, value: object) -> None:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} must be a non-empty str, got {value!r}")


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter as it acts on K and V: the digest of its weights (never its name or id) and its scale."""

    digest: bytes
    scale: float = 1.0

    def __post_init__(self) -> None:
        _require_digest("adapter.digest", self.digest)
        if not isinstance(self.scale, (int, float)) or not -MAX_SCALE <= self.scale <= MAX_SCALE:
            raise ValueError(f"adapter.scale must be a finite number, got {self.scale!r}")


@dataclass(frozen=True, slots=True)
class ImageSpan:
    """Token positions [start, end) that one image fills. ``digest`` None: blocks from ``start`` on are not cached."""

    start: int
    end: int
    digest: bytes | None

    def __post_init__(self) -> None:
        if not (isinstance(self.start, int) and isinstance(self.end, int) and 0 <= self.start < self.end < 2**63):
            raise ValueError(f"image span must satisfy 0 <= start < end < 2**63, got [{self.start!r}, {self.end!r})")
        if self.digest is not None:
            _require_digest("image digest", self.digest)


@dataclass(frozen=True, slots=True)
class CacheIdentity:
    """Everything besides the token ids that K and V of a sequence depend on, and who may see them.

    ``mode`` is what the K/V are computed under: "dense", or a text naming gate and budget. ``images`` are kept in
    order of position, whatever order they come in, and may not overlap.
    """

    layout_id: str
    model_digest: bytes
    adapter: Adapter | None = None
    tenant: tuple[str, ...] = ()
    mode: str = DENSE
    images: tuple[ImageSpan, ...] = ()

    def __post_init__(self) -> None:
        _require_text("layout_id", self.layout_id)
        _require_text("mode", self.mode)
        _require_digest("model_digest", self.model_digest)
        if self.adapter is not None and not isinstance(self.adapter, Adapter):
            raise ValueError(f"adapter must be an Adapter or None, got {self.adapter!r}")
        if not isinstance(self.tenant, tuple) or not all(isinstance(part, str) for part in self.tenant):
            raise ValueError(f"tenant must be a tuple of str, got {self.tenant!r}")
        if not isinstance(self.images, (tuple, list)) or not all(isinstance(i, ImageSpan) for i in self.images):
            raise ValueError(f"images must be a tuple of ImageSpan, got {self.images!r}")
        images = tuple(sorted(self.images, key=lambda image: image.start))
        for before, after in pairwise(images):
            if after.start < before.end:
                raise ValueError(f"images must not overlap, got {before!r} and {after!r}")
        object.__setattr__(self, "images", images)

    @property
    def reuse_modes(self) -> tuple[str, ...]:
        """The modes whose blocks a request of this identity may reuse, best first.

        Dense K/V are exact, so every mode may start from them. The reverse would hand a dense request the error
        of another request's selection.
        """
        return (DENSE,) if self.mode == DENSE else (DENSE, self.mode)


class BlockKey(NamedTuple):
    """``digest`` names a block's content; ``preimage`` is what was hashed, compared on every hit.

    ``mixed`` is the number of dense tokens at the start of a block that goes on under selection, else 0.
    """

    digest: bytes
    preimage: bytes
    parent: bytes
    mixed: int


def pack_tokens(token_ids: TokenIds) -> array[int]:
    """Token ids as int64, or ValueError naming what is accepted. Negative placeholder ids are allowed."""
    if isinstance(token_ids, (bytes, bytearray, memoryview)):  # array would take their bytes for whole integers
        raise ValueError(f"token_ids must be a sequence of integers, got {type(token_ids).__name__}")
    try:
        return array("q", token_ids)
    except (TypeError, OverflowError) as error:
        raise ValueError(f"token_ids must be integers in [-2**63, 2**63), {error}") from None


def _token_bytes(tokens: array[int]) -> bytes:
    if sys.byteorder == "big":
        tokens = tokens[:]
        tokens.byteswap()
    return tokens.tobytes()


def _tag(tag: bytes, length: int) -> bytes:
    return bytes((len(tag),)) + tag + _LENGTH.pack(length)


def _field(tag: bytes, value: bytes) -> bytes:
    return _tag(tag, len(value)) + value


def _text(tag: bytes, value: str) -> bytes:
    # surrogatepass: any str a host hands over has exactly one encoding
    return _field(tag, value.encode("utf-8", "surrogatepass"))


def _adapter_fields(adapter: Adapter) -> bytes:
    return _field(b"adapter", adapter.digest) + _field(b"scale", struct.pack("<d", adapter.scale))


def _root(identity: CacheIdentity) -> bytes:
    parts = [
        _field(b"scheme", _SCHEME),
        _text(b"layout", identity.layout_id),
        _field(b"model", identity.model_digest),
        b"" if identity.adapter is None else _adapter_fields(identity.adapter),
        _field(b"tenant", b"".join(_text(b"part", part) for part in identity.tenant)),
    ]
    return hashlib.sha256(b"".join(parts)).digest()


def _image_field(image: ImageSpan) -> bytes:
    assert image.digest is not None, "blocks at and after an image without digest have no key"
    return _field(b"image", struct.pack("<qq", image.start, image.end) + image.digest)


class KeyChain:
    """Keys of one identity's blocks, each made from its parent's digest, block 0's from ``root``."""

    __slots__ = ("_ends", "_heads", "_images", "_starts", "_tokens_tag", "block_size", "identity", "max_blocks", "root")

    def __init__(self, identity: CacheIdentity, block_size: int) -> None:
        self.identity = identity
        self.block_size = block_size
        self.root = _root(identity)
        # all that precedes the parent's digest and the token ids, whose lengths are fixed: key() runs per block
        self._heads = {
            mode: _field(b"root", self.root) + _text(b"mode", mode) + _tag(b"parent", len(self.root))
            for mode in identity.reuse_modes
        }
        self._tokens_tag = _tag(b"tokens", 8 * block_size)
        unknown = [image.start for image in identity.images if image.digest is None]
        # blocks that lie wholly before the first image of unknown content; None: every block has a key
        self.max_blocks = min(unknown) // block_size if unknown else None
        self._images = [image for image in identity.images if image.digest is not None]
        self._starts = [image.start for image in self._images]
        self._ends = [image.end for image in self._images]

    def key(self, parent: bytes, index: int, tokens: array[int], mode: str, mixed: int = 0) -> BlockKey:
        """Key of block ``index`` holding ``tokens`` (exactly one block of them), computed under ``mode``.

        ``mixed``: the first that many were computed densely. Were it left out of the key, a block that continues
        one such history could be chained to a block that holds another.
        """
        preimage = b"".join((self._heads[mode], parent, self._tokens_tag, _token_bytes(tokens)))
        if self._images:
            preimage += self._images_in(index)
        if mixed:
            preimage += _field(b"mixed", _LENGTH.pack(mixed))
        return BlockKey(hashlib.sha256(preimage).digest(), preimage, parent, mixed)

    def clip(self, num_blocks: int) -> int:
        """How many of the first ``num_blocks`` blocks may be cached."""
        return num_blocks if self.max_blocks is None else min(num_blocks, self.max_blocks)

    def _images_in(self, index: int) -> bytes:
        start = index * self.block_size
        first = bisect_right(self._ends, start)
        last = bisect_left(self._starts, start + self.block_size)
        return b"".join(map(_image_field, self._images[first:last]))


def block_keys(identity: CacheIdentity, token_ids: TokenIds, block_size: int) -> Iterator[bytes]:
    """Digests of the full, cacheable blocks of a sequence wholly computed under ``identity.mode``.

    For tiers and routers, which must name blocks exactly as the pool does. Fewer than ``block_size`` tokens give
    no key; exactly one block gives one.
    """
    chain, tokens = KeyChain(identity, block_size), pack_tokens(token_ids)
    parent = chain.root
    for index in range(chain.clip(len(tokens) // block_size)):
        block = tokens[index * block_size : (index + 1) * block_size]
        parent = chain.key(parent, index, block, identity.mode).digest
        yield parent
