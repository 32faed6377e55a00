"""`dfc layout`: one description as text, PNG and JSON, and refusals that name what is accepted."""

import json
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from deepseek_flash_cache.cli import dfc
from deepseek_flash_cache.config import LayoutPolicy, ModelShape
from deepseek_flash_cache.layout import Layout
from deepseek_flash_cache.layout.page import DTYPE_NAMES

MLA = ("--head-size", "576", "--head-size-v", "512", "--num-kv-heads", "1", "--extent", "4", "--tile-order", "zorder")


def run(*arguments):
    return CliRunner().invoke(dfc, ["layout", *arguments])


def described(*arguments):
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_help_names_every_command_and_imports_nothing_heavy():
    code = (
        "import sys; from deepseek_flash_cache import __version__; from deepseek_flash_cache.cli import dfc; "
        "dfc(['--help'], standalone_mode=False); "
        "assert __version__ and not {'torch', 'rich', 'matplotlib', 'numpy'} & set(sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert all(name in result.stdout for name in ("demo", "generate", "layout", "doctor"))


@pytest.mark.parametrize(("given", "used"), [({}, "passive"), ({"OMP_WAIT_POLICY": "active"}, "active")])
def test_threads_that_wait_sleep_unless_the_user_says_otherwise(given, used):
    code = "import os, deepseek_flash_cache.cli; print(os.environ['OMP_WAIT_POLICY'])"
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"} | given
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert run.stdout.strip() == used


def test_the_default_is_one_block_of_32_kb_a_head():
    page = described()
    assert page["layout"] == "bicl1-paired-row-b64-e1-bf16-h8-k128-v128"
    assert page["head_bytes"] == 32 * 1024
    assert page["tile"] == {"rows": 64, "columns": 64, "row_bytes": 128, "bytes": 8192}
    assert page["tile_ranks"] == {"k": [[0, 1]], "v": [[2, 3]]}


def test_json_is_the_layout_s_own_answer():
    page = described(*MLA)
    layout = Layout.parse(page["layout"])
    assert page["page"] == {"blocks": 4, "tokens": 256, "bytes": layout.page_bytes}
    ranks = (rank for part in page["tile_ranks"].values() for row in part for rank in row)
    assert sorted(ranks) == list(range(4 * (9 + 8)))
    assert page["tile_ranks"]["k"][3][8] == layout.tile_rank("k", 3, 8) == 35


@pytest.mark.parametrize(
    ("arguments", "row_one"),
    [
        ((), [0, 1, 2, 3, 4, 5, 6, 7]),
        (("--tile-format", "swizzle"), [1, 0, 3, 2, 5, 4, 7, 6]),
        (("--tile-format", "swizzle", "--block-size", "32"), [0, 1, 2, 3]),
    ],
)
def test_swizzle_of_a_row(arguments, row_one):
    assert described(*arguments)["swizzle"][1] == row_one


@pytest.mark.parametrize(
    ("arguments", "block", "extent"),
    [
        (("--layer", "0"), 32, 2),
        (("--layer", "5"), 64, 1),
        (("--context-length", "512"), 32, 1),
        (("--head-size", "96"), 32, 2),
        (("--block-size", "64", "--extent", "4"), 64, 4),
    ],
)
def test_the_policy_s_choice_is_shown(arguments, block, extent):
    page = described(*arguments)
    assert (page["tile"]["rows"], page["page"]["blocks"]) == (block, extent)


def test_padding_is_shown():
    assert described("--head-size", "80")["padding_share"] == pytest.approx(1 - 80 / 96)
    assert "16.7% of it padding" in run("--head-size", "80").output


@pytest.mark.parametrize(
    "arguments",
    [
        (*MLA, "--dtype", "fp32"),
        (*MLA, "--block-size", "32"),
        ("--head-size", "1024", "--dtype", "fp32", "--extent", "4"),
    ],
)
def test_text_shows_every_rank_of_a_wide_page_unabridged(arguments):
    lines, ranks = run(*arguments).output.splitlines(), described(*arguments)["tile_ranks"]
    for part, title in (("k", "Tile order, K"), ("v", "Tile order, V")):
        first = next(number for number, line in enumerate(lines) if line.startswith(title)) + 2
        shown = [line.split()[2:] for line in lines[first : first + 4]]
        assert shown == [[str(rank) for rank in row] for row in ranks[part]]


def test_no_line_ends_in_spaces():
    assert [line for line in run(*MLA).output.splitlines() if line != line.rstrip()] == []


@pytest.mark.parametrize(("dtype", "tile_format"), [("bf16", "paired"), ("fp32", "linear")])
def test_the_tile_format_is_the_policy_s(dtype, tile_format):
    assert described("--dtype", dtype)["tile_format"] == tile_format
    shape = ModelShape(3, 8, 128, 8192, next(key for key, name in DTYPE_NAMES.items() if name == dtype))
    assert described("--dtype", dtype)["layout"] == LayoutPolicy().layouts(shape)[2].id


def test_a_deep_layer_is_answered_without_making_those_before_it(monkeypatch):
    monkeypatch.setattr(LayoutPolicy, "layouts", lambda *arguments: pytest.fail("all layers were made"))
    assert described("--layer", "3000000")["tile"]["rows"] == 64


def test_every_option_has_a_help_text():
    names = ("demo", "doctor", "generate", "layout")
    commands = [dfc.get_command(None, name) for name in names]
    assert [option.name for command in commands for option in command.params if not option.help] == []


def test_png_is_drawn_and_drawing_again_gives_the_same_bytes(tmp_path):
    first, second = tmp_path / "a.png", tmp_path / "b.png"
    for path in (first, second):
        assert run(*MLA, "--png", str(path)).exit_code == 0
    assert first.read_bytes().startswith(b"\x89PNG")
    assert first.read_bytes() == second.read_bytes()


def test_json_stays_alone_on_stdout_when_a_png_is_drawn(tmp_path):
    assert described("--png", str(tmp_path / "page.png"))["page"]["tokens"] == 64


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--head-size", "12"), "head_size: 12 is not accepted; it must be a multiple of 8 up to 1024 for bf16"),
        (("--head-size", "96", "--block-size", "64"), "block_size: 64 does not fit head sizes 96/96"),
        (("--num-kv-heads", "0"), "num_kv_heads: 0 is not accepted; it must be at least 1"),
        (("--block-size", "48"), "'48' is not one of 'auto', '32', '64'"),
        (("--dtype", "int4"), "'int4' is not one of 'fp32', 'fp16', 'bf16', 'fp8e4m3', 'fp8e5m2'"),
        (("--extent", "3"), "'3' is not one of '1', '2', '4'"),
        (("--nonsense",), "No such option"),
        (("--png", "page"), "png: 'page' is not accepted; it must end in .png, .svg or .pdf"),
        (("--png", "page.foo"), "Format 'foo' is not supported"),
        (("--png", "/nowhere/page.png"), "'--png': '/nowhere/page.png' cannot be written (No such file"),
    ],
)
def test_a_refusal_is_one_line_that_names_what_is_accepted(arguments, message):
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.output
    assert len(result.output.splitlines()) == 1


def test_a_refused_drawing_leaves_no_file(tmp_path):
    assert run("--png", str(tmp_path / "page.png"), "--head-size", "12").exit_code == 2
    assert list(tmp_path.iterdir()) == []
