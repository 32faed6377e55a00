// The self-test of the emulator as one library: tests/emu/test_selftest.py says what each kernel must do.
#include "emu/selftest/attention.h"
#include "emu/selftest/good.h"
#include "emu/selftest/good_bulk.h"
#include "emu/selftest/probes.h"

#if !defined(__CUDACC__)  // a GPU must not run these
#include "emu/selftest/bad_bulk.h"
#include "emu/selftest/bad_copies.h"
#include "emu/selftest/bad_global.h"
#include "emu/selftest/bad_shared.h"
#include "emu/selftest/bad_warp.h"
#endif
