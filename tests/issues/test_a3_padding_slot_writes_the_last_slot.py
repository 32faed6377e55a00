"""A3: slot -1 used as an index writes the pool's last slot.

vLLM #43810 "padding writes PADDING_SLOT_ID=-1 into last slot" (PR 43869).
"""

import pytest
import torch

from deepseek_flash_cache import ops, spec
from tests.fixtures import empty_cache, layout_of, raw

LAYOUT = layout_of()


@pytest.mark.parametrize("implementation", [ops, spec], ids=["ops", "spec"])
def test_minus_one_is_skipped_and_slot_127_untouched(implementation):
    cache, rows = empty_cache(LAYOUT, 2), torch.randn(3, 2, 64)
    implementation.append(rows, rows, cache, torch.tensor([5, -1, -1]), LAYOUT)
    key, value = ops.unpack(cache, 128, LAYOUT)
    assert torch.equal(key[5], rows[0]) and torch.equal(value[5], rows[0])
    others = [slot for slot in range(128) if slot != 5]
    assert (raw(key)[others] == -1).all() and (raw(value)[others] == -1).all()


@pytest.mark.parametrize("implementation", [ops, spec], ids=["ops", "spec"])
@pytest.mark.parametrize("slot", [-2, 128])
def test_other_slots_outside_the_pool_are_refused(slot, implementation):
    cache, rows = empty_cache(LAYOUT, 2), torch.randn(3, 2, 64)
    with pytest.raises(ValueError, match=rf"slot_mapping\[2\]: {slot} is not accepted"):
        implementation.append(rows, rows, cache, torch.tensor([5, 6, slot]), LAYOUT)
    assert (raw(cache) == -1).all()
