"""`forebay bench`: measurements, of drives, of servers, and of one server against another."""

from forebay.cli.bench import ab, compare, pool, serve
from forebay.cli.flags import Commands

__all__ = ["add"]


def add(commands: Commands) -> None:
    bench = commands.add_parser("bench", help="measure this machine, or a server")
    kinds = bench.add_subparsers(title="benchmarks", metavar="BENCHMARK", required=True)
    for module in (ab, serve, compare, pool):
        module.add(kinds)
