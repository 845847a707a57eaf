"""A process of ours that leads a session of its own: ended in any case, with all it started."""

import contextlib
import os
import signal
import subprocess
from typing import Final

_KILLED_S: Final = 60.0  # a busy machine takes its time to free gigabytes


def end(process: "subprocess.Popen[bytes]", patience_s: float) -> None:
    """First in order; what is left of its session after that is killed, come Ctrl-C what may."""
    try:
        process.terminate()
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        pass
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(_KILLED_S)
