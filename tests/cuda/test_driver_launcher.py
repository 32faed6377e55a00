"""The launcher and the CUDA driver: which calls are made, and what is said when something is missing."""

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from deepseek_flash_cache import ops

COMPILER = os.environ.get("CXX", "g++")
pytestmark = [
    pytest.mark.skipif(ops._C is None, reason="the extension is not built"),
    pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"{COMPILER} was not found"),
]
CUBINS = ("copy.sm_80", "copy.sm_86", "copy.sm_90a", "copy.sm_100", "wgmma.sm_90a", "old.sm_80")


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> str:
    target = tmp_path_factory.mktemp("driver") / "libfake_cuda.so"
    source = Path(__file__).with_name("fake_driver.cpp")
    subprocess.run([COMPILER, "-std=c++17", "-shared", "-fPIC", str(source), "-o", str(target)], check=True)
    return str(target)


@pytest.fixture
def driver(library):
    fake = ctypes.CDLL(library)
    fake.fake_diary.restype = ctypes.c_char_p
    fake.fake_reset.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_size_t, ctypes.c_char_p]
    fake.fake_reset(90, 1, 0, b"")
    return fake


@pytest.fixture
def folder(tmp_path) -> str:
    for name in CUBINS:
        (tmp_path / f"{name}.cubin").write_bytes(name.encode() + b"\0")
    return str(tmp_path)


def diary(driver) -> list[str]:
    return driver.fake_diary().decode().splitlines()


def launch(launcher, kernel="copy", stream=0x77, shared=4096):
    ops._C.cuda_launch(launcher, stream, kernel, (3, 2, 1), 128, shared, b"bytes")


def test_the_first_launch_loads_and_every_launch_uses_the_given_stream(driver, library, folder):
    launcher = ops._C.open_driver(library, 1, folder)
    assert (launcher.sm_count, launcher.arch, launcher.shared_limit) == (132, 90, 232448)
    assert diary(driver) == ["cuInit 0", "cuDeviceGet 1", "cuDevicePrimaryCtxRetain 1"]
    launch(launcher)
    launched = "cuLaunchKernel 0x3000 grid 3 2 1 block 128 1 1 shared 4096 stream 0x77 argument bytes"
    assert diary(driver)[3:] == [
        "cuModuleLoadData copy.sm_90a mode 2",  # relaxed: loading is allowed while a stream is captured
        "cuModuleGetFunction 0x2000 copy",
        "cuFuncSetAttribute 0x3000 8 231424",  # all dynamic shared memory that the kernel's own leaves
        launched,
    ]
    launch(launcher)
    assert diary(driver)[7:] == [launched]


def test_a_thread_without_a_context_gets_the_primary_one_for_the_call(driver, library, folder):
    launcher = ops._C.open_driver(library, 0, folder)
    driver.fake_reset(90, 0, 0, b"")
    launch(launcher)
    assert diary(driver)[0] == "cuCtxPushCurrent 0x1000" and diary(driver)[-1] == "cuCtxPopCurrent"


@pytest.mark.parametrize(
    ("capability", "kernel", "file"),
    [
        (80, "copy", "copy.sm_80"),
        (86, "copy", "copy.sm_86"),
        (89, "copy", "copy.sm_86"),  # an older minor version of the same major one
        (89, "old", "old.sm_80"),
        (90, "wgmma", "wgmma.sm_90a"),
        (103, "copy", "copy.sm_100"),
    ],
)
def test_the_best_cubin_for_the_device(driver, library, folder, capability, kernel, file):
    driver.fake_reset(capability, 1, 0, b"")
    launch(ops._C.open_driver(library, 0, folder), kernel)
    assert any(line.startswith(f"cuModuleLoadData {file} ") for line in diary(driver))


@pytest.mark.parametrize(("capability", "kernel"), [(120, "copy"), (100, "wgmma"), (90, "old"), (90, "absent")])
def test_no_cubin_for_the_device_names_what_there_is(driver, library, folder, capability, kernel):
    driver.fake_reset(capability, 1, 0, b"")
    launcher = ops._C.open_driver(library, 0, folder)
    built = ", ".join(name.split(".")[1] for name in CUBINS if name.startswith(f"{kernel}.")) or "none"
    text = launcher.missing(kernel)
    assert text.startswith(f"no GPU code of {kernel} for sm_{capability}; built: {built}; build it with: make cuda")
    with pytest.raises(RuntimeError, match=f"no GPU code of {kernel}"):
        launch(launcher, kernel)


@pytest.mark.parametrize(
    ("capability", "text"),
    [
        (75, "GPU 0 is an sm_75; sm_80 is the oldest that is served"),
        (62, "GPU 0 is a Jetson \\(sm_62\\), which is not served"),
        (87, "GPU 0 is a Jetson \\(sm_87\\), which is not served"),
    ],
)
def test_old_and_embedded_devices_are_refused(driver, library, folder, capability, text):
    driver.fake_reset(capability, 1, 0, b"")
    with pytest.raises(NotImplementedError, match=text):
        ops._C.open_driver(library, 0, folder)
    assert "cuDevicePrimaryCtxRetain 0" not in diary(driver)


def test_no_driver(folder):
    with pytest.raises(NotImplementedError, match=r"no CUDA driver: libabsent\.so\.1: cannot open"):
        ops._C.open_driver("libabsent.so.1", 0, folder)


def test_a_driver_without_an_entry_is_too_old(folder):
    with pytest.raises(NotImplementedError, match=r"libm\.so\.6 is too old: it has no cuInit"):
        ops._C.open_driver("libm.so.6", 0, folder)


@pytest.mark.parametrize("failing", ["cuModuleLoadData", "cuModuleGetFunction", "cuFuncSetAttribute", "cuLaunchKernel"])
def test_an_error_of_the_driver_is_raised_and_the_next_launch_tries_again(driver, library, folder, failing):
    launcher = ops._C.open_driver(library, 0, folder)
    driver.fake_reset(90, 1, 0, failing.encode())
    with pytest.raises(RuntimeError, match=r"device kernel image is invalid \(error 200\)"):
        launch(launcher)
    driver.fake_reset(90, 1, 0, b"")
    launch(launcher)


def test_a_cubin_of_another_argument_is_refused(driver, library, folder):
    launcher = ops._C.open_driver(library, 0, folder)
    driver.fake_reset(90, 1, 96, b"")
    with pytest.raises(RuntimeError, match="copy: the cubin takes an argument of 96 bytes, this build passes 5"):
        launch(launcher)
    driver.fake_reset(90, 1, 5, b"")
    launch(launcher)
