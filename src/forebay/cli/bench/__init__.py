"""`forebay bench`: measurements, of drives, of servers, and of one server against another."""

from typing import Final

from forebay.cli.parser import Command, Commands

__all__ = ["add"]
_KINDS: Final = (
    Command("ab", "a server without and with the pool", "forebay.cli.bench.ab"),
    Command("serve", "a rising load on a server", "forebay.cli.bench.serve"),
    Command("compare", "two results side by side", "forebay.cli.bench.compare"),
    Command(
        "pool", "a drive: raw O_DIRECT against Forebay's verified tier", "forebay.cli.bench.pool"
    ),
)


def add(commands: Commands) -> None:
    commands.add_parser("bench").add_commands("benchmarks", "BENCHMARK", _KINDS)
