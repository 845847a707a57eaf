"""The reference: one server of 8 GPUs with its tier off and on, clients doubled to 128."""

from collections.abc import Mapping
from typing import Any

CLIENTS = (1, 8, 16, 32, 64, 128)
OFF = {
    "req_s": (0.74, 2.74, 3.47, 4.08, 4.74, 5.33),
    "ttft_ms": (189, 221, 246, 303, 433, 752),
    "tpot_ms": (10.3, 23.9, 38.8, 66.0, 114.5, 204.1),
}
ON = {
    "req_s": (0.80, 4.22, 6.14, 8.82, 12.27, 16.31),
    "ttft_ms": (66, 72, 82, 94, 129, 189),
    "tpot_ms": (10.5, 16.1, 22.3, 31.0, 44.5, 66.0),
}


def document(side: Mapping[str, tuple[float, ...]]) -> dict[str, Any]:
    """A result with no more than it needs."""
    rows = zip(CLIENTS, side["req_s"], side["ttft_ms"], side["tpot_ms"], strict=True)
    return {
        "steps": [
            {
                "clients": clients,
                "req_s": req_s,
                "ttft_ms": {"mean": ttft_ms},
                "tpot_ms": {"mean": tpot_ms},
                "errors": 0,
            }
            for clients, req_s, ttft_ms, tpot_ms in rows
        ]
    }
