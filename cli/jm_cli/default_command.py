"""A command group that is a command, too: ``jm worker MODULE:APP`` beside ``jm worker list``."""

from difflib import get_close_matches
from typing import Any, ClassVar

from typer.core import TyperGroup

from jm_cli.exits import ExitCode, add_hint


class DefaultCommandGroup(TyperGroup):
    """What does not begin with the name of a subcommand goes to ``default_name``, options and all.

    An application whose module is called like a subcommand is run by the default's own name: ``jm worker run list``.
    """

    default_name: ClassVar[str] = "run"

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        first = args[0] if args else ""
        if first not in self.commands and first not in ctx.help_option_names:
            self._mention_near(ctx, first)
            args = [self.default_name, *args]
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The group's, and then that of the default command."""
        super().format_help(ctx, formatter)
        default = self.commands[self.default_name]
        formatter.write(f"\n{ctx.command_path} [{self.default_name}]:\n\n")
        default.format_help(type(ctx)(default, info_name=self.default_name, parent=ctx), formatter)

    def _mention_near(self, ctx: Any, word: str) -> None:
        """``jm worker lits`` looks for an application "lits"; the error says what else it may have been."""
        near = get_close_matches(word, self.commands, n=1) if ":" not in word else []
        if near:
            add_hint(ExitCode.USAGE, f"or did you mean '{ctx.command_path} {near[0]}'?")
