"""What ordering documents gives, and what it costs: prefix hits by count, and CPU time a request.

    python tools/document_order.py [--requests 20000] [--chunk-tokens 256]

Replays requests for documents whose popularity follows Zipf's law, and prints what share of the
documents' tokens is a prefix hit as they were retrieved, in a fixed order (by hash), and with the
most popular first; the bar is twice the first. Then it prints the CPU time of the gateway's step
for a request, its body read and written; the bar is 1 ms. The cache of the replay forgets nothing,
and only whole chunks of it are hits.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.document_trace import HeldPrefixes, ZipfTrace

from forebay.documents.bodies import MEMBER, marked, reordered
from forebay.documents.order import DocumentOrder
from forebay.gateway.front.reading import read_reordered

# Documents in all, of one request, of one topic.
TRACES = {
    "10,000 documents, 5 each": (10_000, 5, 0),
    "1,000 documents, 10 each": (1_000, 10, 0),
    "topics of 20 documents, 10 each": (10_000, 10, 20),
}
BODIES = {  # documents of one request, bytes of one document
    "5 documents of 2 kB": (5, 2_000),
    "10 documents of 4 kB": (10, 4_000),
    "20 documents of 8 kB": (20, 8_000),
}


def share(trace: ZipfTrace, chunk: int, arrange: Callable[[Sequence[int]], Sequence[int]]) -> float:
    """Tokens that are a prefix hit, of all tokens of documents."""
    held = HeldPrefixes(chunk)
    for asked in trace:
        held.ask(arrange(asked))
    return held.share


def by_popularity() -> Callable[[Sequence[int]], Sequence[int]]:
    order = DocumentOrder()

    def arrange(asked: Sequence[int]) -> Sequence[int]:
        return [asked[rank - 1] for rank in order.arrange([str(each) for each in asked]).ranks]

    return arrange


def by_hash() -> Callable[[Sequence[int]], Sequence[int]]:
    place = list(range(max(documents for documents, _, _ in TRACES.values())))
    random.Random(0).shuffle(place)
    return lambda asked: sorted(asked, key=place.__getitem__)


def step_ms(documents: int, size: int, requests: int) -> list[float]:
    """Times of single requests, sorted."""
    order, luck = DocumentOrder(), random.Random(1)
    words = [f"{luck.random()} is äny word of it.\n" for _ in range(1000)]
    corpus = ["".join(luck.choices(words, k=size // 30 + 1))[:size] for _ in range(500)]
    times = []
    for _ in range(requests):
        given = luck.sample(corpus, documents)
        text = "\n\n".join([*given, "What does it say?"])
        asked = {"model": "m", "messages": [{"role": "user", "content": text}], MEMBER: given}
        body = json.dumps(asked, ensure_ascii=False).encode()
        began = time.thread_time()
        members = marked(body)
        assert isinstance(members, dict), members
        found = reordered(members, "messages", order)
        assert not isinstance(found, str), found
        read_reordered(found)
        times.append((time.thread_time() - began) * 1e3)
    return sorted(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--chunk-tokens", type=int, default=256)
    options = parser.parse_args()
    print("share of document tokens that are a prefix hit (bar: popularity 2 x retrieved)")
    for name, (documents, each, topic) in TRACES.items():
        trace = ZipfTrace(documents, each, topic, options.requests)
        retrieved, fixed, popular = (
            share(trace, options.chunk_tokens, arrange)
            for arrange in (list, by_hash(), by_popularity())
        )
        print(
            f"{name:<32} retrieved {retrieved:.3f}, fixed {fixed:.3f}, popularity {popular:.3f}:"
            f" {popular / retrieved:.2f} x"
        )
    print("CPU time of the step for a request (bar: 1 ms)")
    for name, (documents, size) in BODIES.items():
        times = step_ms(documents, size, 2000)
        middle, late = times[len(times) // 2], times[len(times) * 99 // 100]
        print(f"{name:<32} median {middle:.3f} ms, 99 of 100 within {late:.3f} ms")


if __name__ == "__main__":
    main()
