"""What `dfc demo` and `dfc generate` refuse, before they load anything: one line, exit code 2."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

pytest.importorskip("transformers", minversion="4.56")

from deepseek_flash_cache.cli import dfc
from deepseek_flash_cache.commands import demo, loading


def refusal(*arguments):
    result = CliRunner().invoke(dfc, arguments)
    assert result.exit_code == 2
    assert result.stdout == "" and len(result.stderr.splitlines()) == 1
    return result.stderr


def test_an_empty_prompt():
    assert "prompt: '' is not accepted" in refusal("generate", "--prompt", "")


def test_a_missing_option_is_named_without_usage():
    assert refusal("generate") == "Error: Missing option '--prompt'.\n"


def test_a_folder_without_a_model(tmp_path):
    message = refusal("generate", "--model", str(tmp_path), "--prompt", "x")
    assert f"model: '{tmp_path}' cannot be loaded (there is no config.json in it); it must be smollm2, a f" in message


def test_a_folder_that_is_not_there():
    assert "(there is no such folder)" in refusal("generate", "--model", "./nowhere", "--prompt", "x")


def test_a_broken_folder(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    assert f"model: '{tmp_path}' cannot be loaded (" in refusal("generate", "--model", str(tmp_path), "--prompt", "x")


def test_a_model_that_is_not_cached_while_the_hub_is_away(monkeypatch):
    monkeypatch.setattr(loading, "_hub_is_reachable", lambda: False)
    message = refusal("generate", "--model", "nobody/nothing", "--prompt", "x")
    assert "'nobody/nothing' cannot be loaded (it is not in the local cache, and huggingface.co cannot" in message


def test_a_file_that_cannot_be_written_is_refused_before_the_model_is_loaded(monkeypatch, tmp_path):
    monkeypatch.setattr(loading, "load_model", None)
    assert "'--json': " in refusal("demo", "--json", str(tmp_path / "nowhere" / "demo.json"))


def test_the_legend_fits_80_columns():
    assert max(map(len, demo.LEGEND.splitlines())) <= 80
