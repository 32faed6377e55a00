"""A2: padding rows of a captured graph write NaN into slot 0, and the padding of the block table reads it back.

SGLang PR 32477 "Skip KV writes to reserved padding slots"; PR 35351.
"""

import torch

from deepseek_flash_cache import ops
from tests.fixtures import layout_of, raw

LAYOUT = layout_of()
REAL, PADDED = 3, 8


def decode_step(rows: int) -> torch.Tensor:
    """Three sequences of one token each in blocks 1, 2 and 3; rows beyond them are padding that holds NaN."""
    cache = torch.zeros(LAYOUT.cache_shape(5))
    random = torch.Generator().manual_seed(0)
    key, query = torch.full((rows, 2, 64), torch.nan), torch.full((rows, 8, 64), torch.nan)
    key[:REAL] = torch.randn(REAL, 2, 64, generator=random)
    query[:REAL] = torch.randn(REAL, 8, 64, generator=random)
    slots, lens = torch.zeros(rows, dtype=torch.int64), torch.zeros(rows, dtype=torch.int32)
    slots[:REAL], lens[:REAL] = torch.arange(1, 4) * 64, 1
    table = torch.zeros(rows, 2, dtype=torch.int32)
    table[:REAL, 0] = torch.arange(1, 4)
    ops.append(key, key, cache, slots, LAYOUT)
    starts = torch.arange(rows + 1, dtype=torch.int32)
    return ops.attend(query, cache, table, starts, lens, LAYOUT, softmax_scale=0.125, return_lse=True)


def test_real_rows_do_not_change():
    plain, padded = decode_step(REAL), decode_step(PADDED)
    assert torch.equal(raw(plain.out), raw(padded.out[:REAL]))
    assert torch.equal(raw(plain.lse), raw(padded.lse[:, :REAL]))


def test_padding_rows_are_empty_rows():
    padded = decode_step(PADDED)
    assert (padded.out[REAL:] == 0).all()
    assert (padded.lse[:, REAL:] == -torch.inf).all()
