"""Tells the pool which GPUs an engine copies from, so that DRAM is taken near them."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from forebay.settings import Settings, parse_numa
from forebay.sys.machine.gpus import ROOT, visible_gpus

_AUTO: Final = parse_numa("auto")


def near_gpus(
    settings: Settings,
    count: int,
    first: int = 0,
    variables: Mapping[str, str] = os.environ,
    root: Path = ROOT,
) -> Settings:
    """The settings with an engine's GPUs in `numa`, unless that is set or they are not known.

    The engine uses `count` of the visible GPUs, from number `first` on.
    """
    if parse_numa(settings.numa) != _AUTO:
        return settings
    addresses = visible_gpus(variables, root)[first : first + count]
    return replace(settings, numa=",".join(addresses)) if addresses else settings
