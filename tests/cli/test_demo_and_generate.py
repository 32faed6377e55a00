"""`dfc demo` and `dfc generate` on the real model."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

pytest.importorskip("transformers", minversion="4.56")

from deepseek_flash_cache.cli import dfc
from tests.marks import needs_smollm2

pytestmark = [pytest.mark.slow, pytest.mark.model, needs_smollm2]


def test_demo_reports_equal_tokens_and_prefix_hits(tmp_path):
    result = CliRunner().invoke(dfc, ["demo", "--max-new-tokens", "12", "--json", str(tmp_path / "demo.json")])
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "demo.json").read_text())
    assert report["tokens_equal"] is True
    assert "Paris" in report["text"][0]
    assert report["prefix_hit_tokens"] > 3 * 64  # rows start at one column, so not every row gets whole blocks
    assert report["kv_bytes"]["stock"] > 0 < report["kv_bytes"]["ours"]
    assert report["tokens_per_s"]["stock"] > 0 < report["tokens_per_s"]["ours"]
    for name in ("kv_bytes", "tokens_per_s"):  # warm figures must not be taken for cold ones
        assert set(report[name]) == {"stock", "ours", "ours_cold"}
    assert report["kv_bytes"]["ours"] < report["kv_bytes"]["ours_cold"]
    shared = {run["cache"]: run["kv_bytes_shared"] for run in report["runs"] if run["dtype"] == "fp32"}
    assert shared["ours, again"] > shared["stock"] == 0


@pytest.mark.parametrize("cache", [[], ["--stock"], ["--block-size", "32"]])
def test_generate_prints_one_json_document(cache):
    arguments = ["generate", "--raw", "--prompt", "The capital of France is", "--max-new-tokens", "4", "--json"]
    result = CliRunner().invoke(dfc, arguments + cache)
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["text"].startswith(" Paris") and report["new_tokens"] == 4
    assert ("stock" if cache == ["--stock"] else "bicl1-") in report["cache"]


def test_generate_streams_text():
    result = CliRunner().invoke(
        dfc, ["generate", "--prompt", "What is the capital of France?", "--max-new-tokens", "8"]
    )
    assert result.exit_code == 0 and "France" in result.stdout and "per second" in result.stderr
