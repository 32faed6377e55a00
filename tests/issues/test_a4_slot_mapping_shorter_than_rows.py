"""A4: `slot_mapping` is shorter than the key rows under graph padding; the store reads past its end.

vLLM PR 13922 (fixes #13418).
"""

import pytest
import torch

from deepseek_flash_cache import ops, spec
from tests.fixtures import empty_cache, layout_of, raw


@pytest.mark.parametrize("implementation", [ops, spec], ids=["ops", "spec"])
def test_only_as_many_rows_as_slots_are_stored(implementation):
    layout = layout_of()
    cache, rows = empty_cache(layout, 2), torch.randn(8, 2, 64)
    memory = torch.arange(10, 18)  # what lies behind the five slots would be valid slots too
    implementation.append(rows, rows, cache, memory[:5], layout)
    key, _ = ops.unpack(cache, 128, layout)
    assert torch.equal(key[10:15], rows[:5])
    assert (raw(key)[15:] == -1).all() and (raw(key)[:10] == -1).all()
