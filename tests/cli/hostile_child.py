"""Runs command lines of `forebay` one after the other in one process, for tests of hostile words.

Each line of input is a JSON list of words; each line of output is [status, stdout, stderr]. A
status of null is an exception that got through. A command that hangs ends the process with its
stack, and one that takes memory without end gets a MemoryError.
"""

import faulthandler
import io
import json
import os
import resource
import signal
import sys
import traceback
from contextlib import redirect_stderr, redirect_stdout
from typing import Final

from forebay.cli.main import main

HANG_S: Final = 120.0
DATA_BYTES_MAX: Final = 2 << 30


def ended(words: list[str]) -> tuple[int | str | None, str, str]:
    """The exit status of a command and what it printed."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    status: int | str | None
    with redirect_stdout(out), redirect_stderr(err):
        try:
            status = main(words)
        except SystemExit as exit_:
            status = exit_.code
        except BaseException:  # noqa: BLE001 - that is what is looked for
            status = None
            traceback.print_exc()
    for stream in (out, err):
        stream.flush()
    texts = [stream.buffer.getvalue().decode() for stream in (out, err)]
    return status, texts[0], texts[1]


if __name__ == "__main__":
    sys.modules["vllm"] = None  # type: ignore[assignment] # not installed: nothing is started
    resource.setrlimit(resource.RLIMIT_DATA, (DATA_BYTES_MAX, DATA_BYTES_MAX))
    handler = signal.getsignal(signal.SIGINT)
    for line in sys.stdin:
        given = json.loads(line)
        faulthandler.dump_traceback_later(HANG_S, exit=True)
        print(json.dumps(ended(given)), flush=True)
        faulthandler.cancel_dump_traceback_later()
        os.chdir(sys.argv[1])
        signal.signal(signal.SIGINT, handler)
