"""A gateway as a process: it ends when it is told to, whatever it does just then."""

import http.client
import signal
import socket
import threading
from pathlib import Path

import pytest
from tests.gateway_harness import SmallEngine, answers, engine_table, gateway
from tests.pool_process import HANG_S, wait_until

from forebay.cli.main import main


@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(3))
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_while_answers_come(number: signal.Signals, attempt: int) -> None:
    """An exception out of a signal's handler could be lost where the loop calls back."""
    is_over = threading.Event()
    with SmallEngine(answers) as engine, gateway(engine) as front:

        def ask() -> None:
            while not is_over.is_set():
                try:
                    front.chat()
                except (OSError, http.client.HTTPException):
                    return

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(engine.asked) >= 20, "answers", HANG_S)
        assert front.kill(number) == 0
        is_over.set()
        for thread in threads:
            thread.join(HANG_S)
        assert "Terminated" not in front.text()


def test_an_address_that_is_taken_is_said_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "gateway.toml"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f'listen = "127.0.0.1:{taken.getsockname()[1]}"\n'
        path.write_text(listen + engine_table("a", "http://127.0.0.1:1"))
        assert main(["gateway", str(path)]) == 2
    said = capsys.readouterr().err
    assert "cannot listen at 127.0.0.1:" in said
    assert "Traceback" not in said
