"""The `dfc` command. Each subcommand is a module of `commands/`, imported only when it is run: help stays fast."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

# Before anything imports torch: threads that spin while they wait slow every process of a shared machine tenfold.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

COMMANDS = {
    "demo": "Generate text with the stock cache and with ours, and compare tokens, memory and speed.",
    "doctor": "Show devices, compilers and versions, what will be used and why, and what is missing.",
    "generate": "Generate text from a model through the cache.",
    "layout": "Print and draw a page of the cache: sizes, tile order and swizzle.",
}


class Refusal(click.ClickException):
    """Input that the package refuses."""

    exit_code = 2


@contextmanager
def one_line_errors() -> Iterator[None]:
    """What a user did wrong becomes one line: the message, without usage and without traceback."""
    try:
        yield
    except click.UsageError as error:
        raise Refusal(" ".join(error.format_message().split())) from error
    except (ValueError, OSError) as error:
        raise Refusal(str(error)) from error


class LazyGroup(click.Group):
    """A group that knows its commands' names and one-line helps without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"deepseek_flash_cache.commands.{cmd_name}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args:  # click answers with the help, as an error
            return super().parse_args(ctx, args)
        with one_line_errors():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        with one_line_errors():
            return super().invoke(ctx)


@click.group(cls=LazyGroup)
@click.version_option(package_name="deepseek-flash-cache")
def dfc() -> None:
    """KV cache and attention for LLM serving."""


def main() -> None:
    """Entry point of the `dfc` script."""
    dfc(prog_name="dfc")
