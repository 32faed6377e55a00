"""README.md and docs/ tell the truth: every python block runs, every shown `dfc layout` prints what is shown.

```python blocks of a page run in order and share their names. Of ```console and ```bash blocks, the lines
`$ dfc layout ...` and `$ dfc doctor ...` run; the lines that follow, if any, must be the output (`...` for any text).
"""

import doctest
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner
from sybil import Sybil
from sybil.parsers.markdown import CodeBlockParser, PythonCodeBlockParser, SkipParser

from deepseek_flash_cache.cli import dfc

ROOT = Path(__file__).resolve().parent.parent
PAGES = [path for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))) if path.exists()]
COMMAND = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n?)*)", re.MULTILINE)


def check_console(example):
    """Run the `dfc` commands of a shell block; the message that sybil reports if one does not do as shown."""
    problems = (check_command(command, shown) for command, shown in COMMAND.findall(example.parsed))
    return "\n".join(filter(None, problems)) or None


def check_command(command, shown):
    words = shlex.split(command, comments=True)
    if words[:2] not in (["dfc", "layout"], ["dfc", "doctor"]):
        return None
    result = CliRunner().invoke(dfc, words[1:])
    if result.exit_code != 0:
        return f"$ {command}\nexit code {result.exit_code}: {result.output}"
    printed = "".join(f"{line.rstrip()}\n" for line in result.output.splitlines())
    as_shown = doctest.OutputChecker().check_output(f"{shown.rstrip()}\n", printed, doctest.ELLIPSIS)
    return None if not shown.strip() or as_shown else f"$ {command}\nprints\n{printed}and the page shows\n{shown}"


DOCUMENTS = Sybil(
    [
        SkipParser(),
        PythonCodeBlockParser(),
        CodeBlockParser("console", check_console),
        CodeBlockParser("bash", check_console),
    ]
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_examples(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs" / "img").mkdir(parents=True)  # pages draw into it
    for example in DOCUMENTS.parse(page).examples():
        example.evaluate()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pictures_are_there(page):
    pictures = re.findall(r"!\[[^]]*\]\((?!https?:)([^)]+)\)", page.read_text())
    assert [picture for picture in pictures if not (page.parent / picture).exists()] == []
