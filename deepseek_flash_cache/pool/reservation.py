"""How is a later append guaranteed? A promise of blocks that nobody else can take."""

from __future__ import annotations

from .blocks import Blocks


class Reservation:
    """A promise of ``num_blocks`` blocks to the sequences opened with it; ``remaining`` of them are not drawn yet.

    Blocks that such a sequence gives back are promised to it again, so a rejected draft does not lose its place.
    ``close`` (or leaving the ``with``) ends the promise, twice does no harm; blocks already drawn stay drawn.
    """

    __slots__ = ("_blocks", "_open", "num_blocks", "remaining")

    def __init__(self, blocks: Blocks, num_blocks: int, register: set[Reservation]) -> None:
        self.num_blocks = num_blocks
        self.remaining = num_blocks
        self._blocks = blocks
        self._open = register
        blocks.promised += num_blocks
        register.add(self)

    @property
    def closed(self) -> bool:
        return self not in self._open

    def draw(self, count: int) -> None:
        """Up to ``count`` promised blocks are being taken now."""
        self._change(-min(count, self.remaining))

    def restore(self, count: int) -> None:
        """``count`` blocks became idle: promise as many of them again as were drawn."""
        if not self.closed:
            self._change(min(count, self.num_blocks - self.remaining))

    def close(self) -> None:
        self._change(-self.remaining)
        self._open.discard(self)

    def _change(self, count: int) -> None:
        self.remaining += count
        self._blocks.promised += count

    def __enter__(self) -> Reservation:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
