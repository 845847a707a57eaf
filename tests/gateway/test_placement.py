"""Placement without HTTP, by a clock that is set: costs, dialogs, hot prefixes, turns of keys."""

import asyncio
import random
from collections import Counter
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from forebay.gateway.config import GatewayConfig, parse_config
from forebay.gateway.front.reading import read_body, with_hints
from forebay.gateway.placement.dispatcher import Dispatcher
from forebay.gateway.placement.engine_state import Condition
from forebay.gateway.placement.prefixes import PrefixMap, PromptPart
from forebay.gateway.placement.queue import RequestQueue
from forebay.gateway.placement.request import NotPlaced, Placement, RoutedRequest, ServedTokens
from forebay.testing.clock import ManualClock

Result = TypeVar("Result")


def config(
    engines: int = 2, keys: int = 0, *, file: "dict[str, Any] | None" = None, **more: Any
) -> GatewayConfig:
    listed = [
        {"name": f"e{at}", "model": "m", "url": f"http://127.0.0.1:{8001 + at}", **more}
        for at in range(engines)
    ]
    named = [{"name": f"k{at}", "token_sha256": f"{at:064x}"} for at in range(keys)]
    return parse_config({"engine": listed, "key": named, **(file or {})})


def prompt(*sizes: tuple[str, int]) -> tuple[PromptPart, ...]:
    """Parts by name and bytes; equal names after equal parts are equal."""
    chain, name, end = [], 0, 0
    for part, size in sizes:
        name, end = hash((name, part)), end + size
        chain.append(PromptPart(name, end))
    return tuple(chain)


def asked(*sizes: tuple[str, int], key: str = "anonymous", **more: Any) -> RoutedRequest:
    chain = prompt(*sizes)
    return RoutedRequest(key, "m", chain, chain[-1].end, 100, **more)


def placed(dispatcher: Dispatcher, request: RoutedRequest) -> Placement:
    """Where a request goes that does not have to wait."""
    waiting = dispatcher.place(request)
    with pytest.raises(StopIteration) as ended:
        waiting.send(None)
    assert isinstance(ended.value.value, Placement), ended.value.value
    return ended.value.value


def refused(dispatcher: Dispatcher, request: RoutedRequest) -> NotPlaced:
    with pytest.raises(StopIteration) as ended:
        dispatcher.place(request).send(None)
    assert isinstance(ended.value.value, NotPlaced)
    return ended.value.value


def done(dispatcher: Dispatcher, request: RoutedRequest, answer: int = 100) -> None:
    dispatcher.end(request, ServedTokens(answer=answer))


def run(work: "Coroutine[Any, Any, Result]") -> Result:
    return asyncio.run(work)


def test_a_prefix_map_forgets_the_oldest_and_the_ends_first() -> None:
    held = PrefixMap()
    one, other = prompt(("s", 100), ("a", 100)), prompt(("s", 100), ("b", 100))
    held.add(one, 1000)
    assert held.likely(one) == (200, 1)
    assert held.likely(other) == (100, 1)
    held.add(other, 200)
    assert held.likely(one) == (100, 2)
    assert held.likely(other) == (200, 1)
    held.add(prompt(("x", 150)), 200)
    assert held.likely(other) == (0, 0)


def test_a_dialog_stays_with_its_engine_and_a_new_one_goes_to_the_idle_one() -> None:
    dispatcher = Dispatcher(config(), ManualClock())
    turns: list[tuple[str, int]] = [("q0", 4000)]
    first = asked(*turns)
    where = placed(dispatcher, first).engine
    other = asked(("another", 4000))
    assert placed(dispatcher, other).engine != where
    done(dispatcher, first)
    done(dispatcher, other)
    for turn in range(1, 6):
        turns += [(f"a{turn}", 400), (f"q{turn}", 400)]
        request = asked(*turns)
        found = placed(dispatcher, request)
        assert (found.engine, found.reason) == (where, "dialog")
        done(dispatcher, request)


def test_a_dialog_leaves_an_engine_that_is_far_behind() -> None:
    dispatcher = Dispatcher(config(), ManualClock())
    first = asked(("q0", 400), session="s")
    where = placed(dispatcher, first).engine
    dispatcher.engines[where].prefill_tokens += 100_000
    again = asked(("q0", 400), ("a", 40), ("q1", 400), session="s")
    assert placed(dispatcher, again).engine != where


def test_the_pool_makes_leaving_cheap() -> None:
    """The same lead of the other engine moves a dialog only where the pool has its prompt."""
    for pool, stays in ((False, True), (True, False)):
        dispatcher = Dispatcher(config(pool=pool), ManualClock())
        first = asked(("q", 40_000))
        where = placed(dispatcher, first).engine
        done(dispatcher, first)
        dispatcher.engines[where].prefill_tokens += 5000  # 1 s; recomputing takes 2 s
        found = placed(dispatcher, asked(("q", 40_000), ("a", 40), ("r", 40)))
        assert (found.engine == where) is stays
        assert stays or found.reason == "pool"


@pytest.mark.parametrize("pool", [False, True])
def test_one_hot_prefix_is_spread(pool: bool) -> None:
    """Eight clients at a time, one long system prompt: the busiest has at most 1.3 of the least."""
    dispatcher = Dispatcher(config(4, pool=pool), ManualClock())
    running: list[RoutedRequest] = []
    counts: Counter[str] = Counter()
    for number in range(400):
        request = asked(("system", 8000), (f"question {number}", 200))
        counts[placed(dispatcher, request).engine] += 1
        dispatcher.prefilled(request)
        running.append(request)
        if len(running) == 8:
            done(dispatcher, running.pop(0))
    assert len(counts) == 4
    assert max(counts.values()) <= 1.3 * min(counts.values()), counts


def recomputed(pool: bool, choose: str) -> float:
    """Prompt tokens that two engines compute for 12 dialogs of 8 turns that come mixed."""
    luck = random.Random(7)
    kv_tokens = 13_000  # for half of the dialogs, at their longest
    dispatcher = Dispatcher(config(2, pool=pool, kv_tokens=kv_tokens), ManualClock())
    engines = list(dispatcher.engines.values())
    dialogs: list[list[tuple[str, int]]] = [[(f"d{at}", 2000)] for at in range(12)]
    left = [at for at in range(12) for _ in range(8)]
    luck.shuffle(left)
    total = 0.0
    for number, at in enumerate(left):
        request = asked(*dialogs[at])
        if choose == "gateway":
            placed(dispatcher, request)
            total += request.uncached_tokens
            done(dispatcher, request)
        else:
            engine = engines[number % 2 if choose == "round robin" else at % 2]
            held = engine.prefixes.likely(request.chain).size_bytes
            total += (request.prompt_bytes - held) / 4.0
            engine.prefixes.add(request.chain, kv_tokens * 4)
        dialogs[at] += [(f"a{number}", 400), (f"q{number}", 400)]
    return total


def test_little_is_recomputed() -> None:
    """At most half of what round robin recomputes, and 1.05 of what stickiness does."""
    ours = recomputed(pool=True, choose="gateway")
    assert ours <= 0.5 * recomputed(pool=False, choose="round robin")
    assert ours <= 1.05 * recomputed(pool=False, choose="sticky")


def test_keys_are_served_by_weight_while_both_wait() -> None:
    """One key asks ten times as much as the other; both get the same tokens, or by weight."""
    for weight in (1, 3):
        queue = RequestQueue({"k0": 1, "k1": weight}.__getitem__)
        luck = random.Random(3)
        served: Counter[str] = Counter()
        for key, count in (("k0", 2000), ("k1", 200)):
            for _ in range(count):
                cost = luck.randint(50, 2000)
                queue.push(RoutedRequest(key, "m", cost=cost, arrived=0.0))
        while served["k1"] < 50_000:
            request = queue.pop(lambda _: True)
            assert request is not None
            served[request.key] += int(request.cost)
        assert 0.9 <= served["k1"] / served["k0"] / weight <= 1.1


def test_the_cheapest_goes_first_and_age_counts() -> None:
    queue = RequestQueue(lambda _: 1)
    for cost, arrived in ((5000, 0.0), (100, 1.0), (200, 1.0), (100, 30.0)):
        queue.push(RoutedRequest("k", "m", cost=cost, arrived=arrived))
    order = []
    while (request := queue.pop(lambda _: True)) is not None:
        order.append((request.cost, request.arrived))
    assert order == [(100, 1.0), (200, 1.0), (5000, 0.0), (100, 30.0)]


def test_only_what_an_engine_can_start_is_sent_and_long_prompts_wait_for_each_other() -> None:
    async def play() -> None:
        dispatcher = Dispatcher(config(1, max_num_seqs=3, long_prefills=1), ManualClock())
        long = [asked((f"long {at}", 100_000)) for at in range(2)]
        short = [asked((f"short {at}", 100)) for at in range(3)]
        assert isinstance(await dispatcher.place(long[0]), Placement)
        tasks = [asyncio.create_task(dispatcher.place(each)) for each in (long[1], *short)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert [task.done() for task in tasks] == [False, True, True, False]
        dispatcher.first_token(long[0])  # a long prompt may follow, and there is no slot
        await asyncio.sleep(0)
        assert not tasks[0].done()
        done(dispatcher, short[0])
        await asyncio.sleep(0)
        assert [task.done() for task in tasks] == [False, True, True, True]  # the cheapest
        tasks[0].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert dispatcher.waiting == 0
        for request in (long[0], *short[1:]):
            done(dispatcher, request)
        engine = dispatcher.engines["e0"]
        assert (engine.running, engine.long_prefills, engine.prefill_tokens) == (0, 0, 0.0)
        assert dispatcher.keys.states["anonymous"].requests == 0

    run(play())


def test_limits_of_a_key_and_of_the_queue() -> None:
    clock = ManualClock()
    given = config(1, 1, max_num_seqs=1, file={"queue_requests": 1})
    key = given.keys[0].__class__("k0", "0" * 64, requests_max=2, tokens_a_minute=600)
    given = given.__class__(given.listen, given.engines, (key,), queue_requests_max=1)

    async def play() -> None:
        dispatcher = Dispatcher(given, clock)
        first = asked(("a", 400), key="k0")
        assert isinstance(await dispatcher.place(first), Placement)
        waits = asyncio.create_task(dispatcher.place(asked(("b", 400), key="k0")))
        await asyncio.sleep(0)
        over = refused(dispatcher, asked(("c", 400), key="k0"))
        assert (over.status, over.retry_after_s) == (429, 1)
        dispatcher.keys.states["k0"].requests = 0
        full = refused(dispatcher, asked(("c", 400), key="k0"))
        assert (full.status, full.retry_after_s > 0) == (503, True)
        dispatcher.keys.states["k0"].requests = 2
        dispatcher.end(first, ServedTokens(prompt=900, cached=100, answer=100))
        second = await waits
        assert isinstance(second, Placement)
        spent = refused(dispatcher, asked(("d", 400), key="k0"))
        assert (spent.status, spent.retry_after_s) == (429, 31)  # 300 tokens at 10 a second
        clock.advance(31)
        assert dispatcher.keys.states["k0"].refusal(clock.monotonic()) is None

    run(play())


def test_who_waits_is_told_when_the_last_engine_goes() -> None:
    async def play() -> None:
        dispatcher = Dispatcher(config(1, max_num_seqs=1), ManualClock())
        first = asked(("a", 400))
        await dispatcher.place(first)
        waits = asyncio.create_task(dispatcher.place(asked(("b", 400))))
        await asyncio.sleep(0)
        dispatcher.engines["e0"].take_down("gone")
        dispatcher.dispatch()
        found = await waits
        assert isinstance(found, NotPlaced)
        assert found.status == 503
        assert dispatcher.keys.states["anonymous"].requests == 1

    run(play())


def test_rates_are_learnt_from_first_tokens() -> None:
    clock = ManualClock()
    dispatcher = Dispatcher(config(1), clock)
    for number in range(20):
        request = asked((f"p{number}", 40_000))
        placed(dispatcher, request)
        clock.advance(10.0)  # 10,000 tokens in 10 s
        dispatcher.first_token(request)
        done(dispatcher, request)
    assert dispatcher.engines["e0"].prefill_rate == pytest.approx(1000, rel=0.05)


def test_what_is_read_of_a_body() -> None:
    two = b'{"messages":[{"a":1},{"b":2}],"model":"m","priority":-3,"max_tokens":9,"stream":true}'
    three = b'{"model": "m", "messages": [{"a":1},{"b":2},{"c":3}]}'
    first, second = read_body(two, ""), read_body(three, "")
    assert not isinstance(first, str)
    assert not isinstance(second, str)
    assert second.chain[:2] == first.chain
    assert (first.priority, first.answer_tokens_max, first.is_streamed) == (-3, 9, True)
    salted = read_body(b'{"model":"m","cache_salt":"x","messages":[{"a":1}]}', "")
    assert not isinstance(salted, str)
    assert salted.chain[0].name != first.chain[0].name
    text = read_body(b'{"model":"m","prompt":"' + b"x" * 2000 + b'"}', "")
    assert not isinstance(text, str)
    assert len(text.chain) == 4
    most = read_body(b'{"model":"m","messages":[' + b"1," * 10**6 + b"1]}", "")
    assert not isinstance(most, str)
    assert not most.chain, "memory would grow to forty times the body"
    many = read_body(b'{"model":"m","messages":[' + b"1," * 9000 + b"1]}", "")
    assert not isinstance(many, str)
    assert len(many.chain) == 4097
    assert with_hints(b' {"model":1}', {"session": "s"}) == (
        b' {"kv_transfer_params":{"forebay":{"session":"s"}},"model":1}'
    )


def test_a_request_that_is_placed_as_its_time_ends_is_placed() -> None:
    """Both in one turn of the loop: what an engine was given is answered, and given back."""

    async def play() -> None:
        dispatcher = Dispatcher(config(1, max_num_seqs=1, file={"queue_s": 1}), ManualClock())
        loop, clock = asyncio.get_running_loop(), ManualClock()
        loop.time = clock.monotonic  # type: ignore[method-assign]
        before, waits = asked(("x", 40)), asked(("y", 40))
        placed(dispatcher, before)
        work = asyncio.ensure_future(dispatcher.place(waits))
        await asyncio.sleep(0)
        loop.call_at(loop.time() + 0.9, done, dispatcher, before)
        clock.advance(1.5)  # so that both are due at once
        assert isinstance(await work, Placement)
        assert dispatcher.engines["e0"].running == 1
        done(dispatcher, waits)
        assert dispatcher.engines["e0"].running == 0
        assert dispatcher.keys.states["anonymous"].requests == 0

    run(play())


def test_what_failed_goes_to_an_engine_with_room_and_never_beside_a_trial() -> None:
    dispatcher = Dispatcher(config(3, max_num_seqs=1), ManualClock())
    engines = list(dispatcher.engines.values())
    busy, failing = asked(("x", 40_000)), asked(("x", 40_000))
    name = placed(dispatcher, busy).engine  # it has the prompt, and no room
    placed(dispatcher, failing)
    again = dispatcher.place_again(failing)
    assert again is not None
    assert again.engine not in {name, failing.tried[0]}
    for each in engines:
        dispatcher.failed(each, "gone", is_gone=True)
        each.models = {"m": {}}
        each.found_healthy()
    assert {each.condition for each in engines} == {Condition.TRIAL}
    assert dispatcher.place_again(failing) is None, "the third has a request on trial"
