"""A comparison, or one server's result, for the terminal."""

from forebay.bench.report.formatting import clients_of
from forebay.bench.report.sections import compared, failures, findings, headline, steps_of
from forebay.bench.result.compare import Comparison, judged_result
from forebay.bench.result.format import AbResult, LoadResult
from forebay.plan.measured import FAILED_SHARE_MAX, Sla
from forebay.report.escaping import escaped
from forebay.report.text import plain, sections_text


def comparison_text(found: Comparison) -> str:
    """The headline and the table."""
    lines = [f"Within {found.sla}:"]
    lines += [f"  {value} {name} ({more})" for value, name, more, _ in headline(found)]
    lines += ["", f"A: {found.off.name}   B: {found.on.name}", ""]
    lines += [*plain(compared(found, ["A", "B"])), "  < operating point   ! beyond the SLA"]
    return "\n".join(map(escaped, lines))


def ab_text(ab: AbResult, found: Comparison) -> str:
    """What the report says, without its charts and its details."""
    return "\n".join([comparison_text(found), *sections_text(findings(ab))])


def result_text(result: LoadResult, bounds: Sla) -> str:
    """One server under rising load."""
    judged = judged_result(result, bounds)
    lines = [*plain(steps_of(result)), ""]
    if judged.point is None:
        assert judged.violation is not None
        failed_share = judged.violation.failed_share
        why = ": too many requests failed" if failed_share > FAILED_SHARE_MAX else ""
        lines.append(f"No step is within the SLA of {bounds}{why}.")
    else:
        first = "none is beyond it"
        if judged.violation is not None:
            first = f"the first violation is at {judged.violation.clients}"
        lines.append(
            f"Within {bounds}: {clients_of(judged.point.clients)},"
            f" {judged.point.req_s:.2f} requests/s; {first}."
        )
    return "\n".join([*lines, *failures(result)])
