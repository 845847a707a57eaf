"""Long work is visible without a terminal, and short work leaves no lines."""

from forebay.cli.progress import ProgressLines


def test_nothing_is_printed_before_something_is_said() -> None:
    assert ProgressLines().due(1.0) == ""


def test_new_work_is_a_line_and_the_same_work_is_one_after_a_while() -> None:
    lines = ProgressLines()
    lines.show("starting the server", 0.0)
    assert lines.due(1.0) == "forebay: starting the server (0% done after 1 s)"
    assert lines.due(10.0) == ""
    assert lines.due(11.0) == "forebay: starting the server (0% done after 11 s)"
    lines.show("asking it", 0.5)
    assert lines.due(15.0) == ""
    assert lines.due(16.0) == "forebay: asking it (50% done after 16 s)"


def test_counters_that_run_do_not_flood_a_log() -> None:
    lines = ProgressLines()
    printed = 0
    for second in range(60):
        lines.show(f"{second} answers", second / 60)
        printed += bool(lines.due(float(second)))
    assert printed == 12
