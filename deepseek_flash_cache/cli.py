"""The `dfc` command. Each subcommand is a module of `commands/`, imported only when it is run: help stays fast."""

from __future__ import annotations

import importlib
from typing import Any

import click

COMMANDS = {
    "demo": "Generate text with the stock cache and with ours, and compare tokens, memory and speed.",
    "doctor": "Show devices, compilers and versions, what will be used and why, and what is missing.",
    "generate": "Generate text from a model through the cache.",
    "layout": "Print and draw a page of the cache: sizes, tile order and swizzle.",
}


class Refusal(click.ClickException):
    """Input that the package refuses."""

    exit_code = 2


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

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (ValueError, OSError) as error:  # the message is for the user, the traceback is not
            raise Refusal(str(error)) from error


@click.group(cls=LazyGroup)
@click.version_option(package_name="deepseek-flash-cache")
def dfc() -> None:
    """KV cache and attention for LLM serving."""


def main() -> None:
    """Entry point of the `dfc` script."""
    dfc(prog_name="dfc")
