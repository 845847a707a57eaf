"""The SLA's flags, the same for all load benchmarks."""

import argparse
from dataclasses import replace
from typing import Final

from forebay.plan.measured import Sla

_DEFAULT: Final = Sla()


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tpot-ms", metavar="N", type=float, help="bound of the mean TPOT (default: 50)"
    )
    parser.add_argument(
        "--ttft-ms", metavar="N", type=float, help="bound of the mean TTFT (default: none)"
    )


def bounds(parsed: argparse.Namespace, found: Sla = _DEFAULT) -> Sla:
    """The SLA as the flags say it, else as it was; a SettingsError if it cannot be meant."""
    said = {"tpot_ms": parsed.tpot_ms, "ttft_ms": parsed.ttft_ms}
    return replace(found, **{name: value for name, value in said.items() if value is not None})
