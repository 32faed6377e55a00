"""`dfc layout`: what a page of the cache looks like, as text, as a PNG and as JSON.

All three are views of one description, `describe(layout)`, which asks the layout for every place it shows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, get_args

import click

from deepseek_flash_cache.commands.output import OutputFile
from deepseek_flash_cache.config import BLOCK_SIZE_CHOICES, BlockSize, LayoutPolicy, ModelShape
from deepseek_flash_cache.layout import Layout, Part, TileFormat, TileOrder
from deepseek_flash_cache.layout.page import DTYPE_NAMES, POOL_EXTENTS
from deepseek_flash_cache.layout.tile import CHUNK_BYTES, swizzled_chunk

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Description = dict[str, Any]
F = TypeVar("F", bound=Callable[..., Any])

SWIZZLE_ROWS = 8  # the pattern repeats after eight rows
PARTS: tuple[Part, ...] = get_args(Part)
TILE_FORMATS = ("auto", *get_args(TileFormat))


def _choice(name: str, choices: Iterable[object], default: str | None, text: str) -> Callable[[F], F]:
    kind = click.Choice([str(choice) for choice in choices])
    return click.option(name, type=kind, default=default, show_default=default is not None, help=text)


@click.command()
@click.option("--head-size", default=128, show_default=True, help="Columns of a K row.")
@click.option("--head-size-v", type=int, help="Columns of a V row.  [default: as --head-size]")
@_choice("--dtype", DTYPE_NAMES.values(), "bf16", "What K and V are stored as.")
@click.option("--num-kv-heads", default=8, show_default=True, help="Heads of K and V.")
@_choice("--block-size", BLOCK_SIZE_CHOICES, "auto", "Rows (tokens) of a tile.")
@click.option(
    "--context-length", default=8192, show_default=True, type=click.IntRange(1), help="Longest sequence, for auto."
)
@click.option("--layer", default=2, show_default=True, type=click.IntRange(0), help="Layer of the model, for auto.")
@_choice("--extent", POOL_EXTENTS, None, "Blocks of a page.  [default: the policy's]")
@_choice("--tile-order", get_args(TileOrder), "row", "Order of the tiles in a head's run.")
@_choice("--tile-format", TILE_FORMATS, "auto", "Order inside a tile; auto is that of CPU pools.")
@click.option("--png", type=OutputFile(), help="Draw the page and a tile into FILE (.png, .svg, .pdf).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
def layout(png: Path | None, as_json: bool, **options: Any) -> None:
    """Print and draw a page of the cache: sizes, tile order and swizzle."""
    if png is not None and not png.suffix:
        raise ValueError(f"png: {str(png)!r} is not accepted; it must end in .png, .svg or .pdf")
    description = describe(chosen_layout(**options))
    if png is not None:
        draw(description, png)
    if as_json:
        click.echo(json.dumps(description))
        return
    click.echo(as_text(description))
    if png is not None:
        click.echo(f"drawn: {png}")


def chosen_layout(
    head_size: int,
    head_size_v: int | None,
    dtype: str,
    num_kv_heads: int,
    block_size: str,
    context_length: int,
    layer: int,
    extent: str | None,
    tile_order: TileOrder,
    tile_format: TileFormat | Literal["auto"],
) -> Layout:
    """The layout that the block-size policy gives a layer, with the page's extent overridden if asked."""
    torch_dtype = next(dtype_ for dtype_, name in DTYPE_NAMES.items() if name == dtype)
    size = cast(BlockSize, block_size if block_size == "auto" else int(block_size))
    policy = LayoutPolicy(size, tile_order=tile_order, tile_format=tile_format)
    shape = ModelShape(layer + 1, num_kv_heads, head_size, context_length, torch_dtype, head_size_v)
    chosen = policy.layer_layout(shape, layer)
    return chosen if extent is None else replace(chosen, extent=int(extent))


def describe(layout: Layout) -> Description:
    """Sizes, tile ranks and swizzle of a layout, as JSON-ready values.

    `tile_ranks[part][token_block][column_tile]` is a tile's place within its head's run; `swizzle[row][chunk]` is
    where a 16-byte chunk of the first rows of a tile is stored.
    """
    tile_columns = (layout.k_tiles + layout.v_tiles) * layout.tile_columns
    return {
        "layout": layout.id,
        "dtype": DTYPE_NAMES[layout.dtype],
        "num_kv_heads": layout.num_kv_heads,
        "head_size": layout.head_size,
        "head_size_v": layout.head_size_v,
        "tile_order": layout.tile_order,
        "tile_format": layout.tile_format,
        "tile": {
            "rows": layout.block_size,
            "columns": layout.tile_columns,
            "row_bytes": layout.row_bytes,
            "bytes": layout.block_size * layout.row_bytes,
        },
        "block": {"tokens": layout.block_size, "bytes": layout.page_bytes // layout.extent},
        "page": {"blocks": layout.extent, "tokens": layout.page_tokens, "bytes": layout.page_bytes},
        "head_bytes": layout.page_bytes // layout.num_kv_heads,
        "token_bytes": layout.page_bytes // layout.page_tokens,
        "padding_share": 1 - (layout.head_size + layout.head_size_v) / tile_columns,
        "tile_ranks": {part: _ranks(layout, part) for part in PARTS},
        "swizzle": _swizzle(layout),
    }


def _ranks(layout: Layout, part: Part) -> list[list[int]]:
    tiles = layout.k_tiles if part == "k" else layout.v_tiles
    return [[layout.tile_rank(part, block, tile) for tile in range(tiles)] for block in range(layout.extent)]


def _swizzle(layout: Layout) -> list[list[int]]:
    chunks = range(layout.row_bytes // CHUNK_BYTES)
    if layout.tile_format != "swizzle":
        return [list(chunks) for _ in range(SWIZZLE_ROWS)]
    return [[swizzled_chunk(row, chunk, layout.row_bytes) for chunk in chunks] for row in range(SWIZZLE_ROWS)]


# Text: lines as long as they need to be, since a grid that is cut off would be a wrong drawing


def as_text(description: Description) -> str:
    """What `dfc layout` prints."""
    lines = [f"layout {description['layout']}", "\nSizes", *_size_lines(description)]
    for part in PARTS:
        lines.append(f"\nTile order, {part.upper()}: place of each tile in its head's run")
        lines += _grid_lines(description["tile_ranks"][part], "block", "column tile")
    tile_format = description["tile_format"]
    lines.append(f"\nTile format {tile_format}: where each {CHUNK_BYTES}-byte chunk of a row is stored")
    lines += _grid_lines(description["swizzle"], "row", "chunk")
    if tile_format == "paired":
        lines.append("V tiles instead: rows 2i and 2i + 1 are interleaved, element by element")
    return "\n".join(lines)


def _size_lines(description: Description) -> list[str]:
    tile, block, page = description["tile"], description["block"], description["page"]
    padding = description["padding_share"]
    rows = [
        ("tile", tile["bytes"], f"{tile['rows']} tokens x {tile['columns']} columns of one head's K or V"),
        ("block", block["bytes"], f"{block['tokens']} tokens, K and V of all heads ({description['num_kv_heads']})"),
        ("page", page["bytes"], f"{page['tokens']} tokens in {page['blocks']} block{'s' * (page['blocks'] > 1)}"),
        ("head's run", description["head_bytes"], "one head's part of a page, contiguous"),
        ("token", description["token_bytes"], f"its share of a page, {padding:.1%} of it padding"),
    ]
    width = max(len(f"{size:,}") for _, size, _ in rows)
    return [f"{name:<10}  {size:>{width},} bytes  {holds}" for name, size, holds in rows]


def _grid_lines(numbers: list[list[int]], row_name: str, column_name: str) -> list[str]:
    names = [column_name, *(f"{row_name} {index}" for index in range(len(numbers)))]
    rows = [list(range(len(numbers[0]))), *numbers]
    name_width, width = max(map(len, names)), max(2, len(str(max(map(max, rows)))))
    return [
        f"{name:<{name_width}}" + "".join(f" {n:>{width}}" for n in row) for name, row in zip(names, rows, strict=True)
    ]


# Drawing


def draw(description: Description, path: Path) -> None:
    """Draw the tile order of a page and the swizzle of a tile into the image file `path`.

    ValueError if matplotlib cannot write a file of that ending.
    """
    from matplotlib.figure import Figure

    blocks, chunks = description["page"]["blocks"], len(description["swizzle"][0])
    widths = [max(len(description["tile_ranks"][part][0]), 4) for part in PARTS] + [chunks]
    figure = Figure(figsize=(0.5 * sum(widths) + 2.5, 0.5 * max(SWIZZLE_ROWS, blocks) + 1.9), layout="constrained")
    figure.suptitle(f"One head's run of a page, and one tile: {description['layout']}", fontsize=10)
    axes = figure.subplots(1, 3, width_ratios=widths)
    for part, panel in zip(PARTS, axes, strict=False):
        _draw_tiles(panel, part, description["tile_ranks"][part])
    _draw_swizzle(axes[2], description)
    # No version in the file, so that drawing again changes nothing.
    figure.savefig(path, dpi=90, metadata={"Software": None} if path.suffix == ".png" else None)


def _draw_tiles(axes: Axes, part: Part, ranks: list[list[int]]) -> None:
    last = max(map(max, ranks))
    _draw_grid(axes, ranks, "Blues" if part == "k" else "Oranges", min(map(min, ranks)), last * 1.6 + 1)
    _name_axes(axes, f"{part.upper()} tiles in order", "column tile", "token block")
    cells = sorted((rank, tile, block) for block, row in enumerate(ranks) for tile, rank in enumerate(row))
    arrow = {"arrowstyle": "-|>", "color": "crimson", "alpha": 0.6, "shrinkA": 8, "shrinkB": 8}
    for (_, x, y), (_, next_x, next_y) in pairwise(cells):
        axes.annotate("", xy=(next_x, next_y), xytext=(x, y), arrowprops=arrow)


def _draw_swizzle(axes: Axes, description: Description) -> None:
    chunk_at = [[row.index(place) for place in range(len(row))] for row in description["swizzle"]]
    _draw_grid(axes, chunk_at, "Set3", 0, 11)
    _name_axes(axes, f"{description['tile_format']} tile: chunk stored here", "16-byte place", "row")


def _draw_grid(axes: Axes, numbers: list[list[int]], colour_map: str, least: float, most: float) -> None:
    axes.imshow(numbers, cmap=colour_map, vmin=least, vmax=most)
    for y, row in enumerate(numbers):
        for x, number in enumerate(row):
            axes.text(x, y, str(number), ha="center", va="center", fontsize=9)
    axes.set_xticks(range(len(numbers[0])))
    axes.set_yticks(range(len(numbers)))


def _name_axes(axes: Axes, title: str, x: str, y: str) -> None:
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.tick_params(length=0)
