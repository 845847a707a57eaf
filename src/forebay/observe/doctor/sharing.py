"""Checks of what an engine would share: by its model, its flags, its weights, its requests.

The kinds of models and configurations are those of the connector's own table. What is known only
after vLLM has read its whole configuration is not checked here; the engine's log tells that.
"""

import os
import re
from collections.abc import Iterator
from typing import Final

from forebay.engines.vllm.kinds import H200, KINDS, READS_FILES, Configured, declined_kinds
from forebay.engines.weights import weight_files
from forebay.errors import SettingsError
from forebay.observe.doctor.facts import Facts
from forebay.observe.doctor.finding import (
    Check,
    Group,
    Observation,
    Severity,
    note,
    ok,
    problem,
    skipped,
    warning,
)
from forebay.plan.model.shape import LayerKind
from forebay.plan.model.support import why_declined
from forebay.settings import Settings, SettingsSource, build
from forebay.sys.disk import printable
from forebay.sys.machine import limits

_CONNECTOR: Final = "ForebayConnector"
_TRANSFER: Final = f'{{"kv_connector": "{_CONNECTOR}", "kv_role": "kv_both"}}'
_NO_FLAGS: Final = "vLLM's flags were not looked at: give them after --."
_COMPATIBILITY: Final = "See docs/compatibility.md for what is shared."
_RELEASE: Final = re.compile(r"(\d+)\.(\d+)")
_SHOWN_MAX: Final = 8  # releases of engines
_STATES_SINCE: Final = (0, 29)  # the first release with which recurrent states are shared


def _model(facts: Facts) -> Iterator[Observation]:
    model = facts.inputs.model
    if model is None:
        yield skipped("No model was named: give --model.")
        return
    name = printable(model.name)
    why = why_declined(model.shape) if model.shape else ""
    why = KINDS["encoder-decoder"].why if model.is_encoder_decoder else why
    if why:
        yield problem(f"Nothing of {name} is shared: {why}.", _COMPATIBILITY)
    elif model.shape is None:
        yield note(
            f"The architecture of {name} is not known here; the engine judges it when it starts.",
            "Look for 'Forebay is disabled' in its log.",
        )
    else:
        yield ok(f"Models such as {name} are shared.")


def _configuration(facts: Facts) -> Iterator[Observation]:
    """Judge the configuration as `engines/vllm/identity.py` does, but by the flags alone."""
    flags, model = facts.inputs.vllm, facts.inputs.model
    if flags is None:
        yield skipped(_NO_FLAGS)
        return
    kinds = {group.kind for group in model.shape.groups} if model and model.shape else set()
    has_states, local = LayerKind.LINEAR in kinds, {LayerKind.SLIDING, LayerKind.CHUNKED}
    is_old = (0, 0) < _minor(facts.inputs.vllm_version) < _STATES_SINCE
    is_v2 = facts.inputs.environment.get("VLLM_USE_V2_MODEL_RUNNER") == "1"
    configured = Configured(
        has_states=has_states,
        keeps_states=flags.prefix_caching is not False and not is_old,
        zeroes_states=has_states and is_v2,
        has_local=has_states or bool(kinds & local),
        stages=flags.pipeline_parallel,
        prefill_context_parallel=flags.prefill_context_parallel,
        decode_context_parallel=flags.decode_context_parallel,
        speculation=flags.speculation,
        has_run_time_scales=flags.run_time_scales,
        is_pooling=flags.is_pooling,
    )
    found = [KINDS[kind] for kind in declined_kinds(configured)]
    for kind in found:
        yield problem(f"The engine would be declined: {kind.why}.", _COMPATIBILITY)
    if not found:
        yield ok("None of the given flags of vLLM keeps the engine from sharing.")
    if flags.config_file:
        yield note(
            f"vLLM's {printable(flags.config_file)} was not read.",
            "Give what it says as flags, to have it checked.",
        )


def _prefix_caching(facts: Facts) -> Iterator[Observation]:
    flags = facts.inputs.vllm
    if flags is None:
        yield skipped(_NO_FLAGS)
    elif flags.prefix_caching is False:
        yield warning(
            "vLLM's prefix caching is off: every turn loads its whole prefix from the pool again,"
            " models with recurrent states are declined, and so may be images.",
            "Leave --no-enable-prefix-caching out.",
        )
    else:
        yield ok("vLLM's own prefix caching is not switched off.")


def _weights(facts: Facts) -> Iterator[Observation]:
    advice = "Set weights_id to a name that no other weights have."
    settings, flags, model = _engine_settings(facts), facts.inputs.vllm, facts.inputs.model
    if isinstance(settings, Settings) and settings.weights_id:
        yield ok("The weights are known by weights_id.")
        return
    load_format = flags.load_format if flags else "auto"
    if load_format not in READS_FILES:
        yield problem(
            f"The weights are unknown: load_format={load_format[:40]} reads no weight files of the"
            " model's directory.",
            advice,
        )
        return
    if model is None or not model.directory:
        yield skipped("The weights' files were not looked at: give --model with a directory.")
        return
    directory = printable(model.directory)
    try:
        files = weight_files(model.directory)
    except OSError as error:
        yield problem(f"The weights are unknown: {directory} ({error.strerror}).", advice)
        return
    unreadable = next((path for path in files if not os.access(path, os.R_OK)), None)
    if not files:
        yield problem(f"The weights are unknown: there are no weight files in {directory}.", advice)
    elif unreadable is not None:
        yield problem(
            f"The weights are unknown: {printable(str(unreadable))} cannot be read.",
            "Let the engine's user read it, or set weights_id.",
        )
    else:
        yield ok(f"The weights in {directory} can be hashed.")


def _realm(facts: Facts) -> Iterator[Observation]:
    """Compare realms; they are secrets, so only whether two are equal is reported."""
    flags, own = facts.inputs.vllm, facts.settings.realm
    told = str((flags.settings or {}).get("realm", "")) if flags else ""
    if told and own and told != own:
        yield problem(
            "vLLM's flags name another realm than the settings here, and the engine takes one of"
            " them: with the other it shares nothing.",
            "Give all engines that are to share one realm, by FOREBAY_REALM.",
        )
    elif told:
        yield warning(
            "The realm is in vLLM's flags, which every user of the machine can read.",
            "Give it by FOREBAY_REALM.",
        )
    elif own:
        yield note(
            "A realm is set: only engines with the same one share.",
            "Look that FOREBAY_REALM is the same for all of them.",
        )
    else:
        yield ok("No realm is set; all engines of the pool may share.")


def _settings(facts: Facts) -> Iterator[Observation]:
    flags = facts.inputs.vllm
    if flags is None:
        yield skipped(_NO_FLAGS)
        return
    if flags.connector is None and flags.config_file:
        yield skipped("Whether vLLM's --config file names a KV connector was not looked at.")
    elif flags.connector is None:
        yield warning(
            "vLLM's flags name no KV connector, so this engine would not use Forebay.",
            f"Start it with forebay serve, or add --kv-transfer-config '{_TRANSFER}' (docs/serve.md"
            " tells more).",
        )
    elif flags.connector != _CONNECTOR:
        yield problem(
            f"vLLM's flags name another KV connector, {flags.connector[:60] or 'without a name'}.",
            f"Name {_CONNECTOR}, or leave --kv-transfer-config out and use forebay serve.",
        )
    found = _engine_settings(facts)
    if isinstance(found, str):
        why, _, hint = found.partition("; ")
        yield problem(
            f"The connector would refuse its settings: {why.rstrip('.')}.",
            f"Mend kv_connector_extra_config: {hint or 'docs/settings.md lists all settings.'}",
        )
        return
    context = flags.context_tokens
    if context is not None and found.min_tokens >= context:
        yield problem(
            f"The setting min_tokens is {found.min_tokens:,} and no prompt has more than"
            f" {context:,} tokens, so nothing is ever shared.",
            "Lower min_tokens.",
        )
    elif flags.connector == _CONNECTOR:
        yield ok("The engine would use Forebay, with settings that it accepts.")


def _vllm(facts: Facts) -> Iterator[Observation]:
    """Check the installed release, and those of the engines that have joined the pool."""
    told = [str(each.get("engine") or "") for each in facts.pool.listed("engines")]
    joined = [each.removeprefix("vLLM ") for each in told if each.startswith("vLLM ")]
    versions = dict.fromkeys([facts.inputs.vllm_version, *joined])
    versions.pop("", None)
    if not versions:
        yield skipped("vLLM is not installed beside this Forebay, and none has joined the pool.")
    for version in list(versions)[:_SHOWN_MAX]:
        yield _release(version[:40], is_on_gpu=limits.has_nvidia_gpu(facts.root))


def _release(version: str, *, is_on_gpu: bool) -> Observation:
    ran = KINDS["FullAttentionSpec"].ran
    releases = sorted({release for release, _ in ran}, key=_minor)
    span = f"{_shown(releases[0])} to {_shown(releases[-1])}"
    on_gpu = {_minor(release) for release, device in ran if device == H200}
    if not _minor(releases[0]) <= _minor(version) <= _minor(releases[-1]):
        return warning(
            f"This is vLLM {version}, and Forebay was run with {span}.",
            "Install one of those, or try this one before you rely on it.",
        )
    if is_on_gpu and _minor(version) not in on_gpu:
        return note(
            f"vLLM {version} was run with Forebay on CPUs only.",
            "Try it before you rely on it; docs/compatibility.md says what ran where.",
        )
    return ok(f"vLLM {version} is among those that Forebay was run with ({span}).")


def _minor(release: str) -> tuple[int, int]:
    match = _RELEASE.match(release)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _shown(release: str) -> str:
    return ".".join(map(str, _minor(release)))


def _engine_settings(facts: Facts) -> Settings | str:
    """The settings in the engine's flags, else ours; or why the engine would refuse them."""
    told = facts.inputs.vllm.settings if facts.inputs.vllm else None
    if not told:
        return facts.settings
    try:
        return build([SettingsSource(told, lambda name: name)])
    except SettingsError as error:
        return str(error)


CHECKS: Final = (
    Check(
        "sharing.model",
        Group.SHARING,
        "a model that the connector declines",
        Severity.PROBLEM,
        _model,
    ),
    Check(
        "sharing.configuration",
        Group.SHARING,
        "parallelism, speculation and other flags of vLLM for which an engine is declined",
        Severity.PROBLEM,
        _configuration,
    ),
    Check(
        "sharing.prefix_caching",
        Group.SHARING,
        "vLLM's prefix caching switched off",
        Severity.WARNING,
        _prefix_caching,
    ),
    Check(
        "sharing.weights",
        Group.SHARING,
        "weights without files that can be read, and without `weights_id`",
        Severity.PROBLEM,
        _weights,
    ),
    Check(
        "sharing.realm",
        Group.SHARING,
        "realms that differ, or one that others can read",
        Severity.PROBLEM,
        _realm,
    ),
    Check(
        "sharing.settings",
        Group.SHARING,
        "another connector or none, settings that the connector refuses, or a `min_tokens` above"
        " every prompt",
        Severity.PROBLEM,
        _settings,
    ),
    Check(
        "sharing.vllm",
        Group.SHARING,
        "a release of vLLM that Forebay was not run with",
        Severity.WARNING,
        _vllm,
    ),
)
