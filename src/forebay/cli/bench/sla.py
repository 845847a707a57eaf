"""The SLA's flags, the same for all load benchmarks."""

import argparse

import msgspec

from forebay.bench.result.compare import sla_of
from forebay.bench.result.format import AbResult, SlaBounds


def add(parser: argparse.ArgumentParser) -> None:
    """`--tpot-ms` and `--ttft-ms`."""
    parser.add_argument(
        "--tpot-ms", metavar="N", type=float, help="bound of the mean TPOT (default: 50)"
    )
    parser.add_argument(
        "--ttft-ms", metavar="N", type=float, help="bound of the mean TTFT (default: none)"
    )


def bounds(parsed: argparse.Namespace) -> SlaBounds:
    """The SLA as the flags say it; a SettingsError if it cannot be meant."""
    return _checked(SlaBounds(), parsed)


def replaced(ab: AbResult, parsed: argparse.Namespace) -> AbResult:
    """A result under its own SLA, unless the flags say another."""
    return msgspec.structs.replace(ab, sla=_checked(ab.sla, parsed))


def _checked(found: SlaBounds, parsed: argparse.Namespace) -> SlaBounds:
    if parsed.tpot_ms is not None:
        found = msgspec.structs.replace(found, tpot_ms=parsed.tpot_ms)
    if parsed.ttft_ms is not None:
        found = msgspec.structs.replace(found, ttft_ms=parsed.ttft_ms)
    sla_of(found)
    return found
