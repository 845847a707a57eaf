"""Energy that the GPUs of this machine have used, as NVIDIA's management library counts it."""

import ctypes
from typing import Final

_GPUS_MAX: Final = 64


def joules() -> float | None:
    """Joules of all GPUs together since their driver was loaded; None if not counted."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    if library.nvmlInit_v2():
        return None
    try:
        return _total(library)
    finally:
        library.nvmlShutdown()


def _total(library: ctypes.CDLL) -> float | None:
    count = ctypes.c_uint()
    if library.nvmlDeviceGetCount_v2(ctypes.byref(count)):
        return None
    total = 0
    for number in range(min(count.value, _GPUS_MAX)):
        device, used = ctypes.c_void_p(), ctypes.c_ulonglong()
        if library.nvmlDeviceGetHandleByIndex_v2(number, ctypes.byref(device)):
            return None
        if library.nvmlDeviceGetTotalEnergyConsumption(device, ctypes.byref(used)):
            return None
        total += used.value
    return total / 1000
