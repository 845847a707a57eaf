"""Engines that share a GPU, behind a gateway that runs: swaps, what fails in them, and kills."""

import http.client
import json
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.gateway.swap.sleeping_engine import PIECES, SleepingEngine
from tests.gateway_harness import GatewayProcess
from tests.pool_process import HANG_S, short_directory, wait_until

from forebay.cli.main import main

pytestmark = pytest.mark.slow
QUICK = 'name = "g"\nidle_s = 0\nawake_s = 0\npatience_s = 1\ndrain_s = 0\n'


def shared(engine: SleepingEngine, *more: str) -> str:
    lines = [f'name = "{engine.name}"', f'model = "{engine.name}"', f'url = "{engine.url}"']
    return "\n".join(["[[engine]]", *lines, 'gpu = "g"', 'swap = "sleep"', *more, ""])


def owned(name: str, *more: str, **files: Path) -> str:
    command = [sys.executable, "-m", "tests.gateway.swap.sleeping_engine", name]
    command += [word for flag, path in files.items() for word in (f"--{flag}", str(path))]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    lines = [f'name = "{name}"', f'model = "{name}"', f'url = "{url}"']
    lines += ['gpu = "g"', f"command = {json.dumps(command)}", *more, ""]
    return "\n".join(["[[engine]]", *lines])


class SwappingGateway(GatewayProcess):
    """A gateway whose engines share the GPU g."""

    def ask(self, model: str, **more: Any) -> "tuple[int, dict[str, str], str]":
        body = {"model": model, "messages": [{"role": "user", "content": "x"}], **more}
        status, headers, content = self.fetch("/v1/chat/completions", body)
        return status, headers, content.decode()

    def power(self, name: str) -> str:
        return str(self.engine(name)["power"])

    def engine(self, name: str) -> "dict[str, Any]":
        found: dict[str, Any] = next(
            each for each in self.status()["engines"] if each["name"] == name
        )
        return found

    def await_power(self, name: str, power: str) -> None:
        wait_until(lambda: self.power(name) == power, f"{name} to be {power}", HANG_S)

    def note(self, name: str) -> "dict[str, Any]":
        found: dict[str, Any] = json.loads((self.state / f"{name}.json").read_bytes())
        return found

    @property
    def state(self) -> Path:
        return self.file.parent / "state"


@contextmanager
def swapping(*engines: str, gpu: str = QUICK) -> Iterator[SwappingGateway]:
    with short_directory() as place:
        config = f'state_dir = "{place / "state"}"\n[[gpu]]\n{gpu}' + "".join(engines)
        begun = SwappingGateway(place, config)
        try:
            yield begun
        finally:
            if begun.process.poll() is None:
                begun.kill()
            for note in (place / "state").glob("*.json"):
                os.killpg(json.loads(note.read_bytes())["pid"], signal.SIGKILL)
        assert "a bug was caught" not in begun.text(), begun.text()


@contextmanager
def two() -> "Iterator[tuple[SleepingEngine, SleepingEngine]]":
    with ExitStack() as stack:
        yield stack.enter_context(SleepingEngine("a")), stack.enter_context(SleepingEngine("b"))


def streaming(
    front: SwappingGateway, model: str, count: int
) -> "tuple[threading.Thread, list[str]]":
    """A stream that has begun, and what is read of it in the end."""
    found: list[str] = []

    def ask() -> None:
        with suppress(http.client.HTTPException, OSError):  # a gateway that is killed
            found.append(front.ask(model, stream=True, max_tokens=count)[2])

    thread = threading.Thread(target=ask)
    thread.start()
    wait_until(lambda: front.engine(model)["running"] == 1, "the stream", HANG_S)
    return thread, found


def wake(front: SwappingGateway, *names: str) -> None:
    for name in names:
        assert front.ask(name)[0] == 200


def whole(found: "list[str]", name: str, count: int) -> bool:
    texts = re.findall(r'"text": "(.*?)"', found[0])
    return texts == [f"{at} {name} w;" for at in range(count)] and "[DONE]" in found[0]


def test_a_request_wakes_its_engine_and_the_other_sleeps() -> None:
    with two() as (one, other), swapping(shared(one), shared(other)) as front:
        wait_until(lambda: "asleep" in {front.power("a"), front.power("b")}, "one", HANG_S)
        for name in "abba":
            status, headers, text = front.ask(name)
            assert status == 200
            assert f"0 {name} w;" in text
            assert headers["x-forebay-engine"] == name
            assert front.power(name) == "awake"
            assert front.power("b" if name == "a" else "a") == "asleep"
        assert front.ask("b")[1]["x-forebay-reason"] == "woken"
        assert front.ask("b")[1]["x-forebay-reason"] == "only"
        for engine in (one, other):
            slept = [call for call in engine.calls if "sleep" in call]
            assert slept
            assert set(slept) == {"/sleep?level=1&mode=keep"}
            for at, call in enumerate(engine.calls):
                assert call != "/wake_up" or engine.calls[at + 1] == "/v1/completions"
        metrics = front.fetch("/metrics")[2]
        assert b'forebay_gateway_engine_awake{engine="b"} 1' in metrics
        assert b'forebay_gateway_wake_seconds_count{engine="a"}' in metrics
        for path in ("/sleep", "/wake_up", "/collective_rpc", "/v1/sleep"):
            assert front.fetch(path, {})[0] == 404


def test_t64_answers_under_way_are_kept_and_go_on() -> None:
    with two() as (one, other), swapping(shared(one), shared(other)) as front:
        wake(front, "b", "a")
        one.calls.clear()
        one.may_go.clear()  # the answer takes for ever
        thread, found = streaming(front, "a", PIECES)
        assert front.ask("b")[0] == 200
        assert not found
        one.may_go.set()
        thread.join(HANG_S)
        assert whole(found, "a", PIECES), "its engine was woken again for it"
        assert b'forebay_gateway_kept_total{engine="a"} 1' in front.fetch("/metrics")[2]
        assert [call for call in one.calls if "sleep" in call] == ["/sleep?level=1&mode=keep"]


def test_where_keep_fails_wait_is_tried() -> None:
    with two() as (one, other), swapping(shared(one), shared(other)) as front:
        wake(front, "b", "a")
        one.calls.clear()
        one.faults = {"keep"}
        thread, found = streaming(front, "a", 3 * PIECES)
        assert front.ask("b")[0] == 200
        thread.join(HANG_S)
        assert whole(found, "a", 3 * PIECES)
        modes = [re.sub(".*mode=", "", call) for call in one.calls if "sleep" in call]
        assert modes == ["keep", "keep", "wait"]
        assert one.calls.count("/wake_up?tags=scheduling") == 2
        metrics = front.fetch("/metrics")[2]
        assert b'forebay_gateway_swap_failures_total{engine="a",step="keep"} 2' in metrics


def test_an_engine_that_cannot_sleep_serves_on() -> None:
    with two() as (one, other), swapping(shared(one), shared(other)) as front:
        wake(front, "b", "a")
        one.faults = {"keep", "wait"}
        waits = threading.Thread(target=front.ask, args=["b"])
        waits.start()
        wait_until(lambda: one.calls.count("/sleep?level=1&mode=wait") >= 1, "it", HANG_S)
        assert front.ask("a")[0] == 200
        one.faults.clear()
        waits.join(HANG_S)
        assert front.power("b") == "awake"


def test_an_engine_that_hangs_in_its_sleep_keeps_the_other_from_nothing() -> None:
    """It neither sleeps nor wakes: it counts as broken, and the other engine is woken."""
    with two() as (one, other), swapping(shared(one), shared(other)) as front:
        wake(front, "b", "a")
        one.faults = {"keep", "wait"}
        one.wake = lambda tags: None  # type: ignore[method-assign]
        assert front.ask("b")[0] == 200
        assert front.engine("a")["why"] == "wake: it sleeps on"
        assert front.ask("a")[0] == 503


def test_an_engine_that_does_not_wake_is_left_out_and_tried_again() -> None:
    with two() as (one, other), swapping(shared(one), shared(other)) as front:
        wake(front, "b", "a")
        other.wake = lambda tags: None  # type: ignore[method-assign]
        assert front.ask("b")[0] == 503
        assert front.engine("b")["why"] == "it sleeps on"
        assert front.ask("a")[0] == 200
        del other.wake
        wait_until(lambda: front.condition("b") != "down", "another try", HANG_S)
        assert front.ask("b")[0] == 200


def test_engines_are_started_each_before_the_next_and_found_again() -> None:
    with swapping(owned("a"), owned("b")) as front:
        front.await_power("b", "awake")
        assert front.power("a") == "asleep"
        assert front.ask("a")[0] == 200
        pids = [front.note(name)["pid"] for name in "ab"]
        thread, _ = streaming(front, "a", 200)
        front.kill()
        thread.join(HANG_S)
        front.start()
        for name in "ba":
            assert front.ask(name)[0] == 200
        assert [front.note(name)["pid"] for name in "ab"] == pids, "they served on"
        again = SwappingGateway.__new__(SwappingGateway)
        again.file, again.log = front.file, front.state / "second.log"
        again.log.write_bytes(b"")
        with pytest.raises(AssertionError, match="another gateway uses state_dir"):
            again.start()


def test_engines_are_stopped_when_they_are_told_to(capsys: pytest.CaptureFixture[str]) -> None:
    with swapping(owned("a"), owned("b")) as front:
        front.await_power("b", "awake")
        assert main(["gateway", "stop", str(front.file)]) == 2
        assert "another gateway uses" in capsys.readouterr().err
        assert front.kill(signal.SIGTERM) == 0
        pids = [front.note(name)["pid"] for name in "ab"]
        os.kill(pids[0], 0)
        assert main(["gateway", "stop", str(front.file)]) == 0
        assert "a, b" in capsys.readouterr().out
        assert not any(Path(f"/proc/{pid}/cmdline").exists() for pid in pids)
        assert main(["gateway", "stop", str(front.file)]) == 0


def test_an_engine_that_was_killed_is_started_anew() -> None:
    with swapping(owned("a"), owned("b")) as front:
        for name in "ab":
            assert front.ask(name)[0] == 200
        for name in ("a", "b"):  # one sleeps, one is awake
            pid = front.note(name)["pid"]
            os.killpg(pid, signal.SIGKILL)
            wait_until(lambda name=name: front.ask(name)[0] == 200, "a new one", HANG_S)  # type: ignore[misc]
            assert front.note(name)["pid"] != pid


def test_where_sleep_is_not_to_be_had_engines_are_stopped_after_their_last_answer() -> None:
    stop = 'swap = "stop"'
    with swapping(owned("a", stop), owned("b", stop)) as front:
        assert front.power("a") == front.power("b") == "off"
        thread, found = streaming(front, "a", 3 * PIECES)
        assert front.ask("b")[0] == 200
        thread.join(HANG_S)
        assert whole(found, "a", 3 * PIECES)
        assert front.power("a") == "off"
        assert not (front.state / "a.json").exists()


def test_where_host_memory_is_short_weights_are_loaded_again(tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    weights.write_text("first")
    gpu = f'{QUICK}host_memory = "10GiB"\nslab = "4GiB"\n'
    big = owned("b", 'weights = "3GiB"', weights=weights)
    with swapping(owned("a", 'weights = "4GiB"'), big, gpu=gpu) as front:
        assert (front.engine("a")["rest"], front.engine("b")["rest"]) == ("level 1", "level 2")
        for _ in range(2):
            assert "0 b first;" in front.ask("b")[2]
            assert "0 a w;" in front.ask("a")[2]
        pid = front.note("b")["pid"]
        assert front.note("b")["rest"] == "level 2"
        front.kill()  # the next gateway knows at which level it sleeps
        front.start()
        assert "0 b first;" in front.ask("b")[2]
        assert front.note("b")["pid"] == pid
        front.ask("a")
        weights.write_text(
            "second"
        )  # what the pool has is not of these: another process hashes them
        assert "0 b second;" in front.ask("b")[2]
        assert front.note("b")["pid"] != pid


def test_an_engine_that_a_killed_gateway_was_waking_is_compared_by_the_next(
    tmp_path: Path,
) -> None:
    weights = tmp_path / "weights"
    weights.write_text("first")
    gpu = f'{QUICK}host_memory = "10GiB"\nslab = "4GiB"\n'
    big = owned("b", 'weights = "3GiB"', weights=weights)
    with swapping(owned("a", 'weights = "4GiB"'), big, gpu=gpu) as front:
        wake(front, "b", "a")
        pid = front.note("b")["pid"]
        front.kill()
        weights.write_text("second")
        found = re.search(r'url = "http://(.*?)"', big)
        assert found is not None
        for path, body in (
            ("/wake_up?tags=weights", ""),
            ("/collective_rpc", '{"method": "reload_weights"}'),
        ):
            engine = http.client.HTTPConnection(found[1], timeout=HANG_S)
            engine.request("POST", path, body)
            assert engine.getresponse().status == 200
            engine.close()
        front.start()
        assert "0 b second;" in front.ask("b")[2]
        assert "weights are not what they were" in front.text()
        assert front.note("b")["pid"] != pid


def test_a_command_that_fails_is_said_and_tried_again(tmp_path: Path) -> None:
    table = owned("a").replace(sys.executable, "/nonexistent/python")
    with swapping(table) as front:
        wait_until(lambda: front.power("a") == "broken", "it to fail", HANG_S)
        assert "cannot be run: No such file" in front.engine("a")["why"]
        assert front.ask("a")[0] == 503


def test_an_engine_that_computes_nothing_when_it_woke_gets_no_request() -> None:
    with two() as (one, other), swapping(shared(one), shared(other)) as front:
        wake(front, "b", "a")
        other.faults = {"probe"}
        assert front.ask("b")[0] == 503
        started, probes = front.engine("b")["started"], other.calls.count("/v1/completions")
        assert front.engine("b")["why"] == "the probe failed: it answered 500"
        assert other.calls[-1] == "/sleep?level=1&mode=keep"
        assert front.ask("a")[0] == 200, "it gave the GPU back"

        def was_tried_again() -> bool:
            assert front.ask("b")[0] == 503
            return other.calls.count("/v1/completions") > probes

        wait_until(was_tried_again, "another try", HANG_S)
        assert front.engine("b")["started"] == started
        other.faults.clear()
        wait_until(lambda: front.ask("b")[0] == 200, "it to be used again", HANG_S)


def test_an_engine_that_fails_every_request_sleeps_before_another_has_its_gpu() -> None:
    with two() as (one, other), swapping(shared(one), shared(other)) as front:
        wake(front, "b", "a")
        one.faults = {"ill"}
        wait_until(
            lambda: front.ask("a")[0] == 503 and front.engine("a")["condition"] == "down",
            "it to be left out",
            HANG_S,
        )
        one.calls.clear()
        assert front.ask("b")[0] == 200
        assert "/sleep?level=1&mode=keep" in one.calls
        one.faults.clear()
        wait_until(lambda: front.ask("a")[0] == 200, "it to be used again", HANG_S)


def test_an_engine_that_starts_and_computes_nothing_gives_the_gpu_back(tmp_path: Path) -> None:
    ill = tmp_path / "ill"
    ill.touch()
    with swapping(owned("a", ill=ill), owned("b")) as front:
        assert front.ask("b")[0] == 200
        assert "engine a is not used: the probe failed" in front.text()
        assert not (front.state / "a.json").exists()
        ill.unlink()
        wait_until(lambda: front.ask("a")[0] == 200, "another start", HANG_S)
