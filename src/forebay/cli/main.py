"""The `forebay` command line: parse it, run one command, print an error as one sentence.

Exit status: 0 done, 1 the command found what it looks for (damage, a violation), 2 it could not
begin, 130 interrupted, 143 terminated.
"""

import contextlib
import io
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from types import FrameType, ModuleType

from forebay import __version__
from forebay.cli import bench, check, plan, remote, sim
from forebay.cli.engine import demo, serve
from forebay.cli.flags import Parser
from forebay.cli.pool import clear, stats
from forebay.cli.pool import serve as pool
from forebay.cli.pool import set as set_command
from forebay.errors import StartupError
from forebay.report.text import escaped

# One module a command, in the order of the help text.
_MODULES: tuple[ModuleType, ...] = (
    serve,
    demo,
    pool,
    stats,
    set_command,
    clear,
    check,
    remote,
    bench,
    plan,
    sim,
)
_LINE_LETTERS_MAX = 2000  # of an error
_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class _Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP: end like Ctrl-C, so that what a command made is cleaned up."""


def build_parser() -> Parser:
    """The whole command line, every command with its help."""
    parser = Parser(
        prog="forebay",
        description="A shared, verified KV-cache pool beneath the GPUs of LLM inference servers.",
    )
    parser.add_argument("--version", action="version", version=f"forebay {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in _MODULES:
        module.add(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and answer its exit status."""
    try:
        words = sys.argv[1:] if arguments is None else list(arguments)
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")  # a terminal need not know every letter
        parsed = build_parser().parse_args(words)
        parsed.words = words  # a result says by which command it was measured
        with _terminable():
            status = int(parsed.run(parsed))
        sys.stdout.flush()
    except StartupError as error:
        return _cannot(str(error))
    except _Terminated:
        return 143
    except KeyboardInterrupt:
        print("forebay: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        _drop_output()  # its reader has gone
        return 0
    except OSError as error:
        return _cannot(f"the system refused: {error.strerror or error}.")
    except MemoryError:
        return _cannot("there is not enough memory for this.")
    return status


def _cannot(why: str) -> int:
    """Say why the command could not begin, or not go on."""
    print(f"forebay: {_one_line(why)}", file=sys.stderr)
    try:
        sys.stdout.flush()
    except OSError:
        _drop_output()
    return 2


def _drop_output() -> None:
    """What remains in the buffer must not fail at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _one_line(text: str) -> str:
    """An error, its middle left out where it is long."""
    shown = escaped(text)
    if len(shown) <= _LINE_LETTERS_MAX:
        return shown
    half = _LINE_LETTERS_MAX // 2
    return f"{shown[:half]} ... {shown[-half:]}"


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the command like Ctrl-C meanwhile."""
    before = {number: signal.signal(number, _terminate) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _terminate(_number: int, _frame: FrameType | None) -> None:
    raise _Terminated


if __name__ == "__main__":
    sys.exit(main())
