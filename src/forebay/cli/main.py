"""The `forebay` command line: parse it, run one command, print an error as one sentence.

The sentence goes to standard error. With --json, standard output has an object with it as well, so
that a program always finds JSON there: `{"error": SENTENCE, "exit_status": 2}`.

Exit status: 0 done, 1 the command found what it looks for (damage, a violation), 2 it could not
start, 130 interrupted, 143 terminated.
"""

import contextlib
import io
import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from types import FrameType

from forebay import __version__
from forebay.cli.parser import Command, Parser
from forebay.errors import StartupError
from forebay.report.escaping import escaped

# In the order of the help text. A module is imported when its command is given.
COMMANDS: tuple[Command, ...] = (
    Command("serve", "run vLLM with the pool beneath it", "forebay.cli.engine.serve"),
    Command("demo", "dialogs with vLLM, without and with the pool", "forebay.cli.engine.demo"),
    Command("pool", "run the pool of this host", "forebay.cli.pool.serve"),
    Command("gateway", "several engines behind one address", "forebay.cli.gateway"),
    Command("stats", "what the pool holds and does", "forebay.cli.pool.stats"),
    Command("top", "watch the pool in a terminal", "forebay.cli.pool.top"),
    Command("why", "what became of the last requests, and why", "forebay.cli.pool.why"),
    Command("health", "whether records go through the pool", "forebay.cli.pool.health"),
    Command("set", "change a running pool's caps", "forebay.cli.pool.set"),
    Command("clear", "delete what the pool holds", "forebay.cli.pool.clear"),
    Command("rotate", "encrypt new records under new keys", "forebay.cli.host.rotate"),
    Command("forget", "delete all that is a tenant's", "forebay.cli.tenants.forget"),
    Command("hash-salt", "a salt as tenants list it", "forebay.cli.tenants.hash_salt"),
    Command("check", "verify every record in a directory", "forebay.cli.host.check"),
    Command("remote", "stores that hosts share, tried from here", "forebay.cli.host.remote"),
    Command(
        "doctor", "what is in the way on this machine, and what to do", "forebay.cli.host.doctor"
    ),
    Command("bench", "measure this machine, or a server", "forebay.cli.bench"),
    Command(
        "plan", "what to buy: KV size, GPUs, pool, break-even, SSD life, cost", "forebay.cli.plan"
    ),
    Command("sim", "simulate policies on a trace of requests", "forebay.cli.sim"),
    Command("completion", "complete this command line in a shell", "forebay.cli.completion"),
)
_LINE_LETTERS_MAX = 2000  # of an error
_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class _Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP: the command ends as with Ctrl-C, and cleans up."""


def build_parser() -> Parser:
    """The parser of the whole command line, every command with its line of help."""
    parser = Parser(
        prog="forebay",
        description="A shared, verified KV-cache pool beneath the GPUs of LLM inference servers.",
    )
    parser.add_argument("--version", action="version", version=f"forebay {__version__}")
    parser.add_commands("commands", "COMMAND", COMMANDS)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        return _run(words, owns_process=arguments is None)
    except StartupError as error:
        return _end(words, str(error))
    except _Terminated:
        return 143
    except KeyboardInterrupt:
        return _end(words, "interrupted", 130)
    except BrokenPipeError:
        _drop_output()  # its reader has gone
        return 0
    except OSError as error:
        return _end(words, f"the system refused: {error.strerror or error}.")
    except MemoryError:
        return _end(words, "there is not enough memory for this.")


def _run(words: list[str], *, owns_process: bool) -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal need not know every letter
    parsed = build_parser().parse_args(words)
    parsed.owns_process = owns_process  # and may give up rights of it for good
    parsed.words = words  # a result says by which command it was measured
    with _terminable():
        status = int(parsed.run(parsed))
    sys.stdout.flush()
    return status


def _end(words: list[str], why: str, status: int = 2) -> int:
    """Report why the command could not start or go on; with --json, as JSON as well."""
    sentence = _one_line(why)
    print(f"forebay: {sentence}", file=sys.stderr)
    try:
        if "--json" in words[: words.index("--") if "--" in words else None]:
            print(json.dumps({"error": sentence, "exit_status": status}))
        sys.stdout.flush()
    except OSError:
        _drop_output()
    return status


def _drop_output() -> None:
    """Drop what is left in the output buffer, so that it cannot fail at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _one_line(text: str) -> str:
    """An error as one line, without its middle if it is long."""
    shown = escaped(text)
    if len(shown) <= _LINE_LETTERS_MAX:
        return shown
    half = _LINE_LETTERS_MAX // 2
    return f"{shown[:half]} ... {shown[-half:]}"


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Within the block, SIGTERM and SIGHUP end the command like Ctrl-C."""
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
