"""Which of a sequence's tokens may be published, and under which keys? Its committed tokens, block by block."""

from __future__ import annotations

from array import array

from .identity import DENSE, BlockKey, KeyChain, TokenIds, pack_tokens
from .prefix import Hit


class History:
    """Committed tokens, the digests of their full blocks, and how many of them were computed densely.

    ``dense`` tokens come first; everything after them carries the identity's own mode, because K and V computed
    on top of selected ones are not dense whatever the step itself did.
    """

    __slots__ = ("_chain", "_dense", "_digests", "tokens")

    def __init__(self, chain: KeyChain) -> None:
        self.tokens: array[int] = array("q")
        self._chain = chain
        self._dense = 0
        self._digests: list[bytes] = []

    def copy(self) -> History:
        twin = History(self._chain)
        twin.tokens, twin._dense, twin._digests = self.tokens[:], self._dense, self._digests[:]
        return twin

    def adopt(self, tokens: array[int], hits: list[Hit]) -> None:
        """Start from the cached blocks ``hits``, of which ``tokens`` are used: the last may be used in part."""
        size = self._chain.block_size
        self.tokens = tokens
        self._digests = [hit.digest for hit in hits[: len(tokens) // size]]
        self._dense = min(sum(hit.dense for hit in hits), len(tokens))

    def suffix(self, token_ids: TokenIds) -> array[int]:
        """What ``token_ids``, a whole sequence, adds; ValueError if it does not start with what is committed."""
        known, given = len(self.tokens), pack_tokens(token_ids)
        if given[:known] != self.tokens:
            at = next(i for i in range(known) if given[i] != self.tokens[i])
            raise ValueError(
                f"token_ids must start with the {known} committed tokens: "
                f"position {at} was {self.tokens[at]}, got {given[at]}"
            )
        return given[known:]

    def extend(self, tokens: array[int], mode: str) -> None:
        if mode == DENSE and self._dense == len(self.tokens):
            self._dense += len(tokens)
        self.tokens.extend(tokens)

    def new_keys(self) -> list[tuple[int, BlockKey]]:
        """(index, key) of the blocks that became full since the last call and may be published."""
        chain, digests, size, keys = self._chain, self._digests, self._chain.block_size, []
        parent = digests[-1] if digests else chain.root
        for i in range(len(digests), chain.clip(len(self.tokens) // size)):
            start, stop = i * size, (i + 1) * size
            mode, mixed = (DENSE, 0) if stop <= self._dense else (chain.identity.mode, max(self._dense - start, 0))
            key = chain.key(parent, i, self.tokens[start:stop], mode, mixed)
            parent = key.digest
            digests.append(parent)
            keys.append((i, key))
        return keys

    def truncate(self, num_tokens: int) -> None:
        """Forget all but the first ``num_tokens`` committed tokens."""
        if num_tokens < len(self.tokens):
            del self.tokens[num_tokens:]
            del self._digests[num_tokens // self._chain.block_size :]
            self._dense = min(self._dense, num_tokens)
