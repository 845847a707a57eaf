"""Snapshots as a pool gives them, with what a test says of it."""

from collections.abc import Mapping
from typing import Any


def metric(*series: tuple[Mapping[str, str], Any], kind: str = "counter") -> dict[str, Any]:
    return {"kind": kind, "unit": "", "values": [[dict(labels), value] for labels, value in series]}


def histogram(buckets: Mapping[float, int], count: int) -> dict[str, Any]:
    return {"buckets": [list(each) for each in buckets.items()], "sum": 0.0, "count": count}


def tier(name: str, used_bytes: int, cap_bytes: int, chunks: int = 0) -> dict[str, Any]:
    tiers = {"name": name, "used_bytes": used_bytes, "cap_bytes": cap_bytes, "chunks": chunks}
    return {**tiers, "volumes": []}


def moved(name: str, *, load: int = 0, store: int = 0) -> list[tuple[dict[str, str], int]]:
    return [
        ({"tier": name, "direction": "load"}, load),
        ({"tier": name, "direction": "store"}, store),
    ]


def engine(model: str, sharing: str = "sharing", why: str = "") -> dict[str, Any]:
    facts = {"id": "8be17015", "model": model, "engine": "vLLM 0.32.0", "sharing": sharing}
    return {**facts, "why": why, "processes": 2, "joined_s": 75.0}


def namespace(name: str, model: str, dram: int, disk: int = 0) -> dict[str, Any]:
    sizes, chunks = {"dram": dram, "disk": disk}, {"dram": dram // 100, "disk": disk // 100}
    return {"namespace": name, "model": model, "bytes": sizes, "chunks": chunks}


def snapshot(uptime_s: float, **parts: Any) -> dict[str, Any]:
    """One of a pool that has been up so long; metrics by name, and whole sections."""
    sections: dict[str, Any] = {
        name: parts.pop(name) for name in ("tiers", "engines", "namespaces") if name in parts
    }
    return {
        "version": 1,
        "forebay": "0.1.0",
        "pid": parts.pop("pid", 7),
        "socket": "/run/forebay/pool.sock",
        "uptime_s": uptime_s,
        "metrics": parts,
        "tiers": [tier("dram", 0, 1000)],
        "engines": [],
        "namespaces": [],
        **sections,
    }
