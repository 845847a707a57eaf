"""Checks of what keeps requests apart: salts, images that are not known, several namespaces."""

from collections.abc import Iterator
from typing import Final

from forebay.decisions import Decision
from forebay.engines.vllm.kinds import KINDS
from forebay.observe.doctor.facts import Facts
from forebay.observe.doctor.finding import (
    Check,
    Group,
    Observation,
    Severity,
    note,
    ok,
    skipped,
    warning,
)

_COMPATIBILITY: Final = "See docs/compatibility.md for what is shared."
_REQUESTS_MIN: Final = 10  # of one outcome; fewer mean nothing
_SHARE_MIN: Final = 0.05
# Fields of a request for which it is declined, with the kind that declines it.
_DECLINES: Final = {"prompt_logprobs": "skips_cache"}


def _requests(facts: Facts) -> Iterator[Observation]:
    body = facts.inputs.request
    if body is None:
        yield skipped("No request was looked at: give one with --request.")
        return
    is_fine = True
    if body.get("cache_salt"):
        is_fine = False
        yield warning(
            "The request has a cache_salt: it shares with requests of the same salt alone.",
            "Use one salt for all users who may share, or none.",
        )
    for name, kind in _DECLINES.items():
        if body.get(name) is not None:
            is_fine = False
            yield warning(
                f"The request has {name} and shares nothing: {KINDS[kind].why}.",
                "Leave it out where it is not needed.",
            )
    if is_fine:
        yield ok("Nothing in the request keeps it from being shared.")


def _salts(facts: Facts) -> Iterator[Observation]:
    """Whether the pool saw the same prompts under other salts, or from other configurations."""
    counted = facts.pool.counted("requests")
    if not counted:
        yield skipped("No engine has told the pool of its requests.")
        return
    salted = facts.pool.counted("requests", outcome=Decision.OTHER_SALT)
    apart = facts.pool.counted("requests", outcome=Decision.OTHER_MODEL)
    if salted >= max(_REQUESTS_MIN, counted * _SHARE_MIN):
        yield warning(
            f"Of {counted:,.0f} requests, {salted:,.0f} found their beginning under another"
            " cache_salt only.",
            "Send one cache_salt with all requests that may share, or none.",
        )
    if apart >= max(_REQUESTS_MIN, counted * _SHARE_MIN):
        yield warning(
            f"Of {counted:,.0f} requests, {apart:,.0f} began as requests of another model or"
            " configuration did, and found nothing under their own.",
            "Compare the engines' weights, realm, dtype, --max-model-len and vLLM release.",
        )
    if max(salted, apart) < max(_REQUESTS_MIN, counted * _SHARE_MIN):
        yield ok(
            f"Requests so far: {counted:,.0f}. Kept apart by a salt: {salted:,.0f}; by another"
            f" model or configuration: {apart:,.0f}."
        )


def _media(facts: Facts) -> Iterator[Observation]:
    flags = facts.inputs.vllm
    if flags is None:
        yield skipped("vLLM's flags were not looked at: give them after --.")
        return
    kinds = []
    if flags.media_cache_type == "shm":
        kinds.append(KINDS["media_elsewhere"])
    if flags.media_cache_gb == 0 and flags.prefix_caching is False:
        kinds.append(KINDS["media_counted"])
    for kind in kinds:
        yield warning(f"Requests with images share nothing: {kind.why}.", _COMPATIBILITY)
    if not kinds:
        yield ok("Requests with images may be shared.")


def _namespaces(facts: Facts) -> Iterator[Observation]:
    """Find models with several namespaces: their engines differ in what shapes KV bytes."""
    by_model: dict[str, int] = {}
    for each in facts.pool.listed("namespaces"):
        if name := str(each.get("model") or ""):
            by_model[name] = by_model.get(name, 0) + 1
    several = [name for name, count in by_model.items() if count > 1]
    for name in several:
        yield note(
            f"The model {name} has chunks in {by_model[name]} namespaces, and these share nothing.",
            "If its engines are meant to share, give all the same weights, weights_id, vLLM"
            " release, dtype, --max-model-len and parallelism; old namespaces age out, or:"
            " forebay clear --namespace",
        )
    if not several:
        yield ok("No model has chunks in several namespaces.")


CHECKS: Final = (
    Check(
        "sharing.requests",
        Group.SHARING,
        "a salt, or `prompt_logprobs`, in a request (`--request FILE`)",
        Severity.WARNING,
        _requests,
    ),
    Check(
        "sharing.salts",
        Group.SHARING,
        "requests whose beginning the running pool has under another salt, or of another"
        " configuration, only",
        Severity.WARNING,
        _salts,
    ),
    Check(
        "sharing.media",
        Group.SHARING,
        "flags of vLLM under which requests with images share nothing",
        Severity.WARNING,
        _media,
    ),
    Check(
        "sharing.namespaces",
        Group.SHARING,
        "one model's chunks in several namespaces of the running pool",
        Severity.NOTE,
        _namespaces,
    ),
)
