"""Files that commands write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

STDOUT = Path("-")


class OutputFile(click.Path):
    """An option's file, tried before the command's work: a mistyped folder must not cost a minute of it."""

    def __init__(self, allow_dash: bool = False) -> None:
        super().__init__(dir_okay=False, allow_dash=allow_dash, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = Path(super().convert(value, param, ctx))  # type: ignore[arg-type]
        if self.allow_dash and path == STDOUT:
            return path
        try:
            _try_to_write(path)
        except OSError as error:
            self.fail(f"{str(path)!r} cannot be written ({error.strerror})", param, ctx)
        return path


def _try_to_write(path: Path) -> None:
    existed = path.exists()
    path.open("ab").close()
    if not existed:
        path.unlink()
