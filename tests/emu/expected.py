"""What each kernel of csrc/emu/selftest must do: the message of a bad one, the values of a good one."""

import torch

THREAD = torch.arange(64)
LANE = THREAD % 32

# The fault of these is seen in one way or another, depending on which thread comes first.
EITHER_WAY = "race: (read after write|write after read)"

BAD = {
    # bad_shared.h
    "bad_no_sync_block": "uninitialised|race: read after write",
    "bad_no_sync_block_initialised": EITHER_WAY,
    "bad_overwrite_while_read": EITHER_WAY,
    "bad_overwrite_read_by_many": EITHER_WAY,
    "bad_no_sync_warp": EITHER_WAY,
    "bad_two_writers": "race: write after write",
    "bad_uninitialised": "read of uninitialised shared memory",
    "bad_shared_bounds": "shared memory out of bounds",
    "bad_shared_alignment": "misaligned access of shared memory",
    "bad_shared_lost_update": f"{EITHER_WAY}|race: write after write",
    "bad_atomic_read_early": "race: (read after atomic|atomic after (read|write))",
    "bad_two_writers_of_a_byte": "race: write after write",
    "bad_byte_of_a_word": EITHER_WAY,
    # bad_warp.h
    "bad_divergent_matrix": r"ldmatrix of a warp whose lane \d+ has ended|ended while .* at ldmatrix",
    "bad_divergent_shuffle": "divergent warp: shfl_xor",
    "bad_early_exit": r"shfl_xor of a warp whose lane 3 has ended|lane 3\) ended while .* at shfl_xor",
    "bad_divergent_barrier": "__syncthreads reached at different places",
    "bad_named_count": "named barrier 1: (32|64) threads here, (32|64) in other threads|DEADLOCK.*named barrier",
    "bad_named_alone": "DEADLOCK.*named barrier",
    "bad_named_no_order": "uninitialised|" + EITHER_WAY,
    "bad_barriers_on_one_line": r"__syncthreads reached at different places: here \(column \d+\)",
    "bad_shuffles_on_one_line": "divergent warp: shfl_xor",
    "bad_divergent_named_barrier": "divergent warp: (bar.sync|__syncwarp)",
    "bad_divergent_warp_number": r"warp\(\) of a warp whose lane \d+ has ended|ended while .* at warp\(\)",
    # bad_copies.h
    "bad_no_wait": r"in flight \(missing wait\)",
    "bad_wait_without_sync": "race: read after write|in flight|uninitialised",
    "bad_wait_off_by_one": r"in flight \(missing wait\)",
    "bad_exit_in_flight": "ends with cp.async in flight",
    "bad_never_committed": "never committed",
    "bad_copy_over_reads": f"{EITHER_WAY}|in flight",
    "bad_copy_bounds": "global load out of bounds",
    "bad_copy_alignment": "misaligned cp.async source",
    # bad_bulk.h
    "bad_bulk_no_wait": r"in flight \(missing wait\)|race: read after write .* bulk copy",
    "bad_bulk_init_not_visible": "no mbarrier was initialised|before its initialisation is visible",
    "bad_bulk_overwrite": "race: write after read|in flight|DEADLOCK.*mbarrier",
    "bad_bulk_wrong_bytes": "DEADLOCK.*mbarrier",
    "bad_too_many_arrivals": "more arrivals than its count",
    "bad_bulk_no_empty_arrival": "DEADLOCK.*mbarrier",
    "bad_bulk_empty_without_sync_warp": "race: write after read|in flight|DEADLOCK.*mbarrier",
    "bad_bulk_one_lane_waits": r"in flight \(missing wait\)|race: read after write .* bulk copy",
    "bad_bulk_wrong_parity": r"in flight \(missing wait\)|race: read after write .* bulk copy|DEADLOCK.*mbarrier",
    "bad_bulk_no_fence": r"without fence_async\(\) between",
    "bad_bulk_exit_in_flight": "ends with bulk copies in flight",
    "bad_bulk_bounds": "global load out of bounds",
    # bad_global.h
    "bad_global_bounds": r"global store out of bounds: .*nearest buffer '\w+'",
    "bad_global_alignment": "misaligned global load",
    "bad_read_only": "global store to read-only buffer 'in'",
    "bad_stale_read": "use ldg_coherent",
    "bad_blocks_write_the_same": "race between blocks: write of bytes of which block . did a write",
    "bad_no_fence": "race between blocks: read of bytes of which block . did a write",
    "bad_lost_update": "race between blocks|race: .* buffer 'counter'",
    "bad_lost_update_in_a_block": r"race: (read|write) after (read|write) of buffer 'counter' \+0",
    "bad_no_sync_global": "race: (read after write|write after read) of buffer 'data'",
    "bad_plain_and_atomic": "race between blocks: (write|atomic) of bytes",
    "bad_no_reader_fence": "race between blocks: read of bytes of which block . did a write",
}
SEVERAL_BLOCKS = {
    "good_last_block", "good_reset_counter", "bad_blocks_write_the_same", "bad_no_fence", "bad_lost_update",
    "bad_plain_and_atomic", "bad_no_reader_fence", "bad_stale_read",
}  # fmt: skip


def votes() -> torch.Tensor:
    odd, up = 0xAA, torch.where(LANE >= 3, LANE - 3, LANE)
    return odd + 1000 + up * 10000 + 7 * 1000000


def of_warp_0(values: torch.Tensor) -> torch.Tensor:
    return torch.where(THREAD < 32, values, 0)


GOOD = {
    "good_reverse": 63 - THREAD,
    "good_neighbour": THREAD ^ 1,
    "good_own_copy": 4 * THREAD,
    "good_zero_fill": 4 * THREAD + 1,
    "good_two_stages": 2 * (63 - THREAD) * 4 + 256,
    "good_votes": votes(),
    "good_named_barrier": of_warp_0(31 - LANE + 7),
    "good_named_turns": of_warp_0(4 * (31 - LANE) + 6),
    "good_last_block": torch.full((64,), 6),
    "good_reset_counter": torch.tensor([1]),
    "good_shared_counter": torch.full((64,), 63 * 32),
    "good_matrix": (torch.arange(16)[:, None] + torch.arange(16)).flatten(),
    "good_bytes": 2 * (63 - THREAD),
    "good_last_bytes": of_warp_0(torch.full((64,), 4095)),
    "good_global_exchange": 63 - THREAD,
    "good_bulk_ring": 6 * (63 - THREAD) + 256 * 15,
    "good_bulk_all_arrive": torch.full((64,), 3 + 64 * 3),
    "good_bulk_over_writes": torch.where(THREAD < 32, 100 + THREAD, THREAD),
}
