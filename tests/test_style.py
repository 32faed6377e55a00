"""The rules of CONTRIBUTING.md that a machine can check: sizes, and layers that are never skipped."""

import ast
import re
from pathlib import Path
from statistics import median, quantiles

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("deepseek_flash_cache", "csrc", "tests", "bench", "examples", "tools")
CODE = {".py", ".h", ".hpp", ".cpp", ".cu", ".cuh"}
MAX_FILE_LINES = 300
MAX_MEDIAN_FUNCTION_LINES = 10
MAX_P90_FUNCTION_LINES = 40


def code_files(*folders: str, suffixes: set[str] = CODE) -> list[Path]:
    found = (path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in suffixes)
    return sorted([*found, *(ROOT.glob("*.py") if folders == FOLDERS else ())])


def matching_lines(pattern: str, files: list[Path]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in files
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(pattern, line)
    ]


def function_lengths(path: Path) -> list[int]:
    tree = ast.parse(path.read_text())
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return [node.end_lineno - node.lineno + 1 for node in functions]


def test_a_file_answers_one_question_in_300_lines():
    lines = {path.relative_to(ROOT): len(path.read_text().splitlines()) for path in code_files(*FOLDERS)}
    assert {str(path): count for path, count in lines.items() if count > MAX_FILE_LINES} == {}


@pytest.mark.parametrize("folder", ["deepseek_flash_cache", "tests", "bench", "tools"])
def test_functions_are_short(folder):
    lengths = [length for path in code_files(folder, suffixes={".py"}) for length in function_lengths(path)]
    if len(lengths) < 2:
        pytest.skip(f"{folder} has no functions yet")
    assert quantiles(lengths, n=10)[-1] <= MAX_P90_FUNCTION_LINES
    assert median(lengths) <= MAX_MEDIAN_FUNCTION_LINES


def test_the_binary_knows_nothing_of_torch():
    assert matching_lines(r'#\s*include\s*[<"](torch|ATen|c10)/', code_files("csrc")) == []


def test_only_ops_calls_the_binary():
    ops = ROOT / "deepseek_flash_cache" / "ops"
    others = [path for path in code_files("deepseek_flash_cache", suffixes={".py"}) if path.parent != ops]
    assert matching_lines(r"^\s*(from|import)\b.*\b_C\b|import_module\(.*\b_C\b|torch\.ops\.|\bops\._C\b", others) == []


def test_within_ops_one_file_loads_the_binary_and_one_per_device_calls_it():
    files = {path.name: path for path in code_files("deepseek_flash_cache/ops", suffixes={".py"})}
    loads = matching_lines(r"from deepseek_flash_cache import .*\b_C\b", list(files.values()))
    assert [line.split(":")[0] for line in loads] == ["deepseek_flash_cache/ops/binary.py"]
    others = [path for name, path in files.items() if name not in ("native.py", "native_sparse.py", "cuda.py")]
    assert matching_lines(r"\b_C\.(?!isa\(|Layout\()\w+\(", others) == []


def test_engines_reach_the_binary_through_the_python_api_only():
    assert matching_lines(r"\b_C\b|\bctypes\b|torch\.ops\.", code_files("deepseek_flash_cache/engines")) == []
