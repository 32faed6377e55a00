"""The self-test as a program: under sanitizers, without this machine's own instructions, and out of stack."""

import os
import subprocess

import pytest

from tests.emu.build import CXX, SELFTEST_PROGRAM, build


def run(program, *arguments, **variables):
    environment = {**os.environ, **variables}
    return subprocess.run([str(program), *arguments], capture_output=True, text=True, check=False, env=environment)


def has_sanitizers(folder):
    source = folder / "empty.cpp"
    source.write_text("int main() {}")
    command = [CXX, "-fsanitize=address,undefined", str(source), "-o", str(folder / "empty")]
    compiled = subprocess.run(command, capture_output=True, check=False).returncode == 0
    return compiled and run(folder / "empty").returncode == 0


@pytest.mark.slow
def test_the_emulator_and_good_kernels_are_clean_under_sanitizers(tmp_path):
    if not has_sanitizers(tmp_path):
        pytest.skip(f"{CXX} cannot link libasan and libubsan")
    program = build("emu_selftest_sanitized", SELFTEST_PROGRAM, sanitize=True, program=True)
    # Threads that a failed launch leaves behind keep what they own: not a leak of the emulator's.
    done = run(program, ASAN_OPTIONS="detect_leaks=0:detect_stack_use_after_return=0")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert ", 0 not as they must be" in done.stdout


@pytest.mark.slow
def test_the_portable_switch_and_conversions_do_the_same():
    program = build("emu_selftest_portable", SELFTEST_PROGRAM, flags=["-DDFC_EMU_UCONTEXT", "-mno-f16c"], program=True)
    done = run(program)
    assert done.returncode == 0, done.stdout[-2000:]


def test_a_thread_that_runs_out_of_stack_is_reported():
    program = build("emu_selftest", SELFTEST_PROGRAM, program=True)
    done = run(program, "probe_stack")
    assert done.returncode < 0
    assert "an emulated thread ran out of stack" in done.stderr
