"""A1: NaN in slots that must not be read reaches the output, since 0 * NaN = NaN.

flash-attention #1745 "FA3 propagates NaN from KVCache paddings"; #2374 "FA3/4 does not guard against NaN in unused V
cache entries". vLLM's CPU attention has the same fault today.
"""

import pytest
import torch

from deepseek_flash_cache import ops, spec
from tests.fixtures import DTYPES, NAN, ZERO, hostile_cache, layout_of, raw

BATCHES = {"decode": (1, 1), "prefill": (1, 65), "varlen": (1, 5), "more queries than keys": (4, 70)}


@pytest.mark.parametrize("implementation", [ops, spec], ids=["ops", "spec"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("batch", BATCHES)
def test_output_is_bit_equal_to_the_zero_filled_run(batch, dtype, implementation):
    results = []
    for filling in (NAN, ZERO):
        case = hostile_cache(layout_of(dtype, 1), (1, 65), BATCHES[batch], group=1, filling=filling)
        results.append(implementation.attend(*case.tensors, case.layout, softmax_scale=0.125).out)
    assert results[0].isfinite().all()
    assert torch.equal(raw(results[0]), raw(results[1]))
