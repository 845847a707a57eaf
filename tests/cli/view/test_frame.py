"""A frame of `top`: it fits every terminal, and the more room there is the more it shows."""

from itertools import product

import pytest
from tests.cli.view.snapshots import engine, metric, moved, namespace, snapshot, tier

from forebay.cli.view.frame import View, frame
from forebay.cli.view.lines import ASCII, UNICODE, Glyphs, plain

HEIGHT = 40
WIDTHS = (1, 5, 20, 40, 79, 80, 110, 139, 140, 200)
HEIGHTS = (1, 2, 5, 12, 24, 60, 200)


def busy(width_of_names: int = 12) -> View:
    """A pool with much to show, some intervals in."""
    view = View(2.0)
    for step in range(1, 8):
        view.add(
            snapshot(
                10.0 * step,
                tiers=[tier("dram", 100 * step, 1000, 5), tier("disk", 50 * step, 10_000, 9)],
                moved_bytes=metric(*moved("dram", load=step * step * 1000, store=step * 10)),
                lookups=metric(({}, step * 50)),
                lookup_chunks=metric(
                    ({"found": "dram"}, 75 * step), ({"found": "absent"}, 25 * step)
                ),
                requests=metric(
                    *(({"outcome": f"reason_{at}"}, (9 - at) * step) for at in range(9))
                ),
                engines=[engine(f"model-{at}") for at in range(4)],
                namespaces=[
                    namespace(f"{at:016x}", "m" * width_of_names, 1000 - at) for at in range(60)
                ],
            )
        )
    return view


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII])
@pytest.mark.parametrize("view", [busy(), busy(300), View(2.0)], ids=["busy", "wide", "empty"])
def test_a_frame_fits_its_terminal(view: View, glyphs: Glyphs) -> None:
    for width, height in product(WIDTHS, HEIGHTS):
        lines = frame(view, width, height, glyphs)
        assert len(lines) <= height
        assert max(len(plain(row)) for row in lines) <= width
        if height > 1 and width > 5 and view.snapshots:
            assert len(lines) == height
            assert plain(lines[-1]).startswith("q quit"[: width - 1])
        if glyphs is ASCII:
            assert all(plain(row).isascii() for row in lines)


def test_what_stands_in_a_frame() -> None:
    text = "\n".join(plain(row) for row in frame(busy(), 150, HEIGHT, UNICODE))
    for wanted in (
        "pool at /run/forebay/pool.sock  up 1 min 10 s, process 7, forebay 0.1.0  every 2 s",
        " 70%  700 B of 1,000 B",
        "hit rate          75%",
        "Runs out first",
        "dram is full in 30 s (300 B left)",
        "Misses by reason",
        "reason 0",
        "Engines",
        "vLLM 0.32.0",
        "Namespaces by size",
        "0000000000000000",
        "▃▄▅▆▇█",
    ):
        assert wanted in text, text


def test_a_small_terminal_keeps_what_matters_most_of_every_list() -> None:
    text = "\n".join(plain(row) for row in frame(busy(), 80, 24, UNICODE))
    for wanted in (
        "dram",
        "hit rate",
        "Runs out first",
        "Misses by reason",
        "Engines",
        "Namespaces",
    ):
        assert wanted in text, text
    whole = [plain(row) for row in frame(busy(), 80, None, UNICODE)]
    assert sum("mmmm" in row for row in whole) == 60
    assert "q quit" not in "".join(whole)


def test_namespaces_are_sorted_as_wished() -> None:
    view = View(2.0)
    spaces = [namespace("a" * 16, "Zeta", 500), namespace("b" * 16, "alpha", 900)]
    spaces[0]["chunks"]["dram"] = 1000
    view.add(snapshot(1.0, namespaces=spaces))
    orders = []
    for _ in range(4):
        rows = [plain(row) for row in frame(view, 100, None, UNICODE)]
        orders.append((view.order, [row.split()[0] for row in rows if row[:4] in {"Zeta", "alph"}]))
        view.next_order()
    assert orders[0] == ("size", ["alpha", "Zeta"]) == orders[3]
    assert orders[1:3] == [("chunks", ["Zeta", "alpha"]), ("model", ["alpha", "Zeta"])]


def test_another_pool_begins_anew_and_words_of_others_are_escaped() -> None:
    view = View(2.0)
    view.add(snapshot(100.0))
    view.add(snapshot(102.0, pid=8, engines=[engine("\x1b[31mred\n")]))
    assert len(view.snapshots) == 1
    text = "\n".join(plain(row) for row in frame(view, 100, None, UNICODE))
    assert "\x1b" not in text
    assert "\\x1b[31mred\\n" in text


def test_that_the_pool_is_gone_has_a_line_of_its_own() -> None:
    view = busy()
    view.note = "no pool answers at /run/forebay/pool.sock (Connection refused)."
    rows = [plain(row).rstrip() for row in frame(view, 80, 24, UNICODE)]
    assert len(rows) == 24
    assert rows[1] == view.note


def test_what_the_pool_does_not_list_is_counted() -> None:
    view = View(2.0)
    view.add({**snapshot(1.0, engines=[engine("m")]), "engines_more": 7, "namespaces_more": 29_900})
    text = "\n".join(plain(row) for row in frame(view, 100, HEIGHT, UNICODE))
    assert "and 7 more" in text
    assert "and 29,900 more" in text


def test_a_terminal_of_110_columns_shows_whole_engines() -> None:
    """Beside each other, lists of that width would be cut off."""
    view = View(2.0)
    why = "pooling models are not supported"
    view.add(snapshot(1.0, engines=[engine("Qwen3-8B", "weights_unknown", why)]))
    text = "\n".join(plain(row) for row in frame(view, 110, HEIGHT, UNICODE))
    assert why in text
    assert "…" not in text
