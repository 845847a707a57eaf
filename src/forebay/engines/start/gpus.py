"""Which GPUs an engine copies from, told to the pool that it starts: DRAM is to lie near them."""

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
    """The same, with the GPUs of an engine that has so many; unless `numa` says something else."""
    if parse_numa(settings.numa) != _AUTO:
        return settings
    addresses = visible_gpus(variables, root)[first : first + count]
    return replace(settings, numa=",".join(addresses)) if addresses else settings
