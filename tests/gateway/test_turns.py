"""Who goes next: keys in turn over all models of an engine, and what a request is charged."""

import asyncio
from typing import Any

import pytest
from tests.gateway.test_placement import asked, config, done, run

from forebay.gateway.config import parse_config
from forebay.gateway.placement.dispatcher import Dispatcher
from forebay.gateway.placement.queue import RequestQueue
from forebay.gateway.placement.request import Placement, RoutedRequest, ServedTokens
from forebay.testing.clock import ManualClock

BACKLOG = 200


def sharing_an_engine() -> Dispatcher:
    """One engine with one slot, of a model and an adapter."""
    made = Dispatcher(config(1, 2, max_num_seqs=1), ManualClock())
    made.engines["e0"].models = {"m": {}, "adapter": {}}
    made.add_models(made.engines["e0"])
    return made


def sharing_a_gpu() -> Dispatcher:
    """Two engines of a GPU, with a slot each."""
    engines = [
        {
            "name": f"e{at}", "model": model, "url": f"http://127.0.0.1:{8000 + at}", "gpu": "g",
            "swap": "sleep", "max_num_seqs": 1,
        }
        for at, model in enumerate(("m", "adapter"))
    ]  # fmt: skip
    keys = [{"name": f"k{at}", "token_sha256": f"{at:064x}"} for at in range(2)]
    file: dict[str, Any] = {"engine": engines, "gpu": [{"name": "g"}], "key": keys}
    return Dispatcher(parse_config(file), ManualClock())


def test_a_backlog_of_one_model_does_not_starve_another_of_the_same_engine() -> None:
    """Both orders of the file: k0 asks much of one, then k1 once of the other."""

    async def play(much: str, once: str) -> int:
        dispatcher = sharing_an_engine()
        backlog = [RoutedRequest("k0", much, prompt_bytes=400) for _ in range(BACKLOG)]
        tasks = [asyncio.create_task(dispatcher.place(each)) for each in backlog]
        await asyncio.sleep(0)
        other = asyncio.create_task(dispatcher.place(RoutedRequest("k1", once, prompt_bytes=400)))
        await asyncio.sleep(0)
        served = 0
        while not other.done():
            done(dispatcher, next(each for each in backlog[served:] if each.engine))
            served += 1
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return served

    assert run(play("m", "adapter")) <= 2
    assert run(play("adapter", "m")) <= 2


def test_models_of_one_engine_or_gpu_wait_in_one_queue_and_others_apart() -> None:
    for made in (sharing_an_engine(), sharing_a_gpu()):
        assert made.models["m"].queue is made.models["adapter"].queue
        assert len(made.queues) == 1
    apart = parse_config(
        {
            "engine": [
                {"name": name, "model": name, "url": f"http://127.0.0.1:{8000 + at}"}
                for at, name in enumerate("ab")
            ]
        }
    )
    assert len(Dispatcher(apart, ManualClock()).queues) == 2


def test_what_waits_goes_along_when_two_queues_become_one() -> None:
    async def play() -> None:
        dispatcher = Dispatcher(
            parse_config(
                {
                    "engine": [
                        {
                            "name": name, "model": name, "max_num_seqs": 1,
                            "url": f"http://127.0.0.1:{8000 + at}",
                        }
                        for at, name in enumerate("ab")
                    ]
                }
            ),
            ManualClock(),
        )  # fmt: skip
        requests = [RoutedRequest("anonymous", name, prompt_bytes=40) for name in "aabb"]
        tasks = [asyncio.create_task(dispatcher.place(each)) for each in requests]
        await asyncio.sleep(0)
        assert [task.done() for task in tasks] == [True, False, True, False]
        engine = dispatcher.engines["a"]
        engine.models = {"a": {}, "b": {}}
        dispatcher.add_models(engine)
        assert len(dispatcher.queues) == 1
        assert [dispatcher.models[name].waiting for name in "ab"] == [1, 1]
        while requests:
            placed = next(each for each in requests if each.engine)
            requests.remove(placed)
            done(dispatcher, placed)
            await asyncio.sleep(0)
        assert all(isinstance(task.result(), Placement) for task in tasks)
        assert dispatcher.waiting == 0

    run(play())


@pytest.mark.parametrize("is_queued", [False, True])
def test_a_refused_request_gives_its_key_no_credit(is_queued: bool) -> None:
    """Neither one that was never charged, nor one whose charge was forgotten with its turn."""

    async def play() -> None:
        dispatcher = Dispatcher(config(1, 2, max_num_seqs=1), ManualClock())
        first = asked(("a", 40_000), key="k0")
        waiting = [asked((f"b{at}", 4000), key=f"k{(at + 1) % 2}") for at in range(8)]
        tasks = []
        if is_queued:
            before = asked(("x", 40), key="k1")
            await dispatcher.place(before)
            both = (first, waiting[0])
            tasks += [asyncio.create_task(dispatcher.place(each)) for each in both]
            await asyncio.sleep(0)
            done(dispatcher, before)
            await asyncio.sleep(0)
            assert first.engine
        else:
            await dispatcher.place(first)
        rest = waiting[1:] if is_queued else waiting
        tasks += [asyncio.create_task(dispatcher.place(each)) for each in rest]
        await asyncio.sleep(0)
        dispatcher.end(first, ServedTokens(prompt=0))
        order: list[str] = []
        while len(order) < 4:
            await asyncio.sleep(0)
            running = next(each for each in waiting if each.engine)
            waiting.remove(running)
            order.append(running.key)
            done(dispatcher, running)
        assert sorted(order) == ["k0", "k0", "k1", "k1"], order
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    run(play())


def test_a_key_is_charged_what_its_request_took() -> None:
    """One that took less than was expected gives the rest back, where it was charged."""
    queue = RequestQueue(lambda _: 1)
    for key in ("k0", "k1") * 3:
        queue.push(RoutedRequest(key, "m", cost=1000, arrived=0.0))
    first = queue.pop(lambda _: True)
    assert first is not None
    queue.correct(first, -990)
    served = [queue.pop(lambda _: True) for _ in range(2)]
    assert first.key in {each.key for each in served if each is not None}
    assert len({each.key for each in served if each is not None}) == 2


def test_an_answer_that_is_continued_waits_for_the_engine_that_holds_it() -> None:
    async def play() -> None:
        dispatcher = Dispatcher(config(2, max_num_seqs=1), ManualClock())
        first = asked(("a", 400))
        await dispatcher.place(first)
        holder = first.engine
        again = asked(("b", 400), holder=holder)
        task = asyncio.create_task(dispatcher.place(again))
        await asyncio.sleep(0)
        assert not task.done(), "the other engine is idle, and does not have the answer"
        free = asked(("c", 400))
        assert (await dispatcher.place(free)) is not None
        assert free.engine != holder
        done(dispatcher, first)
        await asyncio.sleep(0)
        assert again.engine == holder
        done(dispatcher, again)
        done(dispatcher, free)
        dispatcher.engines[holder].take_down("gone")
        lost = asked(("d", 400), holder=holder)
        await dispatcher.place(lost)
        assert lost.engine == free.engine, "which says that it does not know the answer"

    run(play())


def test_an_engine_of_another_model_holds_nothing() -> None:
    async def play() -> None:
        engines = [
            {"name": name, "model": name, "url": f"http://127.0.0.1:{8000 + at}"}
            for at, name in enumerate("ab")
        ]
        dispatcher = Dispatcher(parse_config({"engine": engines}), ManualClock())
        request = RoutedRequest("anonymous", "b", holder="a")
        await dispatcher.place(request)
        assert request.engine == "b"

    run(play())
