"""Every check of what an engine would share finds its planted case, and nothing otherwise."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.observe.doctor.harness import Machine, finds, is_fine, is_skipped, with_snapshot

from forebay.cli.plan.inputs import read_model
from forebay.engines.start.vllm_flags import VllmFlags, read_flags
from forebay.errors import SettingsError
from forebay.observe.doctor.facts import DoctorModel, Facts
from forebay.observe.doctor.finding import Severity
from forebay.plan.model.config import shape_of
from forebay.settings import Settings

FULL, WINDOWED, STATES = (
    DoctorModel(name, shape=read_model(name, None).shape)
    for name in ("Qwen3-8B", "Gemma-3-27B", "Qwen3-Next-80B-A3B")
)
HEADS = {"num_hidden_layers": 8, "num_attention_heads": 8}
LATENT = dict.fromkeys(("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"), 64)
CHUNKED, INDEXED = (
    DoctorModel(name, shape=shape_of(name, "config.json", {**HEADS, **fields, "model_type": name}))
    for name, fields in (("llama4_text", {}), ("deepseek_v32", LATENT))
)
OURS = ("--kv-transfer-config", '{"kv_connector": "ForebayConnector"}')
LOCAL_ALONE = DoctorModel("Mistral-7B-v0.1", shape=read_model("Mistral-7B-v0.1", None).shape)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "machine")


def test_an_engine_as_most_are_is_fine(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    model = DoctorModel("model", str(tmp_path), FULL.shape)
    flags = read_flags(["vllm", "serve", "model", "-tp", "2", "--enable-prefix-caching", *OURS])
    facts = machine.facts(model=model, vllm=flags, request={"prompt": 1}, vllm_version="0.32.0")
    for name in ("model", "configuration", "prefix_caching", "weights", "realm", "requests"):
        is_fine(f"sharing.{name}", facts)
    for name in ("media", "namespaces", "settings", "vllm"):
        is_fine(f"sharing.{name}", facts)


def test_what_was_not_given_is_not_judged(machine: Machine) -> None:
    for name in ("model", "configuration", "prefix_caching", "weights", "requests", "vllm"):
        is_skipped(f"sharing.{name}", machine.facts())
    for name in ("media", "settings"):
        is_skipped(f"sharing.{name}", machine.facts())


def test_an_engine_that_would_not_use_forebay(machine: Machine) -> None:
    facts = machine.facts(vllm=read_flags(["vllm", "serve", "Qwen/Qwen3-8B"]))
    finds("sharing.settings", facts, Severity.WARNING, "not use Forebay", "--kv-transfer-config")
    file = machine.facts(vllm=read_flags(["vllm", "serve", "--config", "vllm.yaml"]))
    is_skipped("sharing.settings", file)


def test_a_model_that_is_declined(machine: Machine) -> None:
    facts = machine.facts(model=LOCAL_ALONE)
    finds("sharing.model", facts, Severity.PROBLEM, "without full attention", "compatibility.md")
    encoder = DoctorModel("t5", is_encoder_decoder=True)
    finds("sharing.model", machine.facts(model=encoder), Severity.PROBLEM, "encoder-decoder")
    finds("sharing.model", machine.facts(model=DoctorModel("new")), Severity.NOTE, "not known")
    for model in (FULL, WINDOWED, CHUNKED, INDEXED, STATES):
        is_fine("sharing.model", machine.facts(model=model))


@pytest.mark.parametrize(
    ("model", "words", "why"),
    [
        (FULL, "--prefill-context-parallel-size=2", "prefill context parallelism needs"),
        (FULL, "-pcp 2", "prefill context parallelism needs"),
        (FULL, "--calculate_kv_scales", "calculated at run time"),
        (FULL, "--runner pooling", "pooling models"),
        (FULL, '-sc {"method":"dflash"}', "this way of speculative decoding"),
        (FULL, "--speculative-config.method extract_hidden_states", "this way of speculative"),
        (FULL, "--spec-method dspark", "this way of speculative"),
        (WINDOWED, '-sc {"method":"eagle"}', "with a drafter beside local attention"),
        (CHUNKED, '-sc {"method":"mtp"}', "with a drafter beside local attention"),
        (STATES, "-pp 2", "pipeline parallelism of models with recurrent states"),
        (STATES, '--speculative-config={"method":"ngram"}', "speculative decoding of models"),
        (STATES, "--no-enable-prefix-caching", "with prefix caching"),
    ],
)
def test_flags_for_which_an_engine_is_declined(
    machine: Machine, model: DoctorModel, words: str, why: str
) -> None:
    facts = machine.facts(model=model, vllm=read_flags(words.split()))
    finds("sharing.configuration", facts, Severity.PROBLEM, why)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (FULL, '-tp 8 -pp 2 -sc {"method":"eagle"}'),
        (FULL, "-tp 8 -dcp 4"),
        (INDEXED, '-tp 8 -sc {"method":"mtp"}'),
        (FULL, "-tp 2 -pcp 4 -dcp 8"),
        (WINDOWED, '-pp 2 --speculative-config={"method":"ngram"}'),
        (WINDOWED, "-tp 2 --some-switch --port 8000"),
        (STATES, ""),
    ],
)
def test_flags_with_which_an_engine_shares(
    machine: Machine, model: DoctorModel, words: str
) -> None:
    is_fine("sharing.configuration", machine.facts(model=model, vllm=read_flags(words.split())))


def test_states_that_this_machine_declines(machine: Machine) -> None:
    flags = VllmFlags()
    old = machine.facts(model=STATES, vllm=flags, vllm_version="0.28.0")
    finds("sharing.configuration", old, Severity.PROBLEM, "0.29 or later")
    runner = {"VLLM_USE_V2_MODEL_RUNNER": "1"}
    facts = machine.facts(model=STATES, vllm=flags, environment=runner)
    finds("sharing.configuration", facts, Severity.PROBLEM, "VLLM_USE_V2_MODEL_RUNNER=0")


def test_a_file_of_vllms_that_is_not_read(machine: Machine) -> None:
    facts = machine.facts(vllm=read_flags(["--config", "vllm.yaml"]))
    finds("sharing.configuration", facts, Severity.NOTE, "vllm.yaml was not read")


def test_prefix_caching_off(machine: Machine) -> None:
    words = ["--enable-prefix-caching", "--no-enable-prefix-caching"]
    facts = machine.facts(vllm=read_flags(words))
    finds("sharing.prefix_caching", facts, Severity.WARNING, "off", "Leave")
    is_fine("sharing.prefix_caching", machine.facts(vllm=read_flags(words[::-1])))


def test_weights_that_are_unknown(machine: Machine, tmp_path: Path) -> None:
    dummy = read_flags(["--load-format", "dummy"])
    facts = machine.facts(vllm=dummy)
    finds("sharing.weights", facts, Severity.PROBLEM, "load_format=dummy", "weights_id")
    is_fine("sharing.weights", machine.facts(vllm=dummy, settings=Settings(weights_id="mine")))
    extra = {"kv_connector": "ForebayConnector", "kv_connector_extra_config": {"weights_id": "a"}}
    named = read_flags(["--load-format", "dummy", "--kv-transfer-config", json.dumps(extra)])
    is_fine("sharing.weights", machine.facts(vllm=named))
    empty = tmp_path / "empty"
    empty.mkdir()
    model = DoctorModel("model", str(empty))
    finds("sharing.weights", machine.facts(model=model), Severity.PROBLEM, "no weight files")
    gone = DoctorModel("model", str(tmp_path / "gone"))
    finds("sharing.weights", machine.facts(model=gone), Severity.PROBLEM, "No such file")
    (empty / "model.safetensors").symlink_to("nowhere")  # root, too, cannot read it
    finds("sharing.weights", machine.facts(model=model), Severity.PROBLEM, "cannot be read")


def test_realms_that_differ(machine: Machine) -> None:
    def told(realm: str) -> VllmFlags:
        return VllmFlags(connector="ForebayConnector", settings={"realm": realm})

    here = Settings(realm="secret-a")
    both = machine.facts(settings=here, vllm=told("secret-b"))
    finds("sharing.realm", both, Severity.PROBLEM, "another realm", "FOREBAY_REALM")
    readable = machine.facts(vllm=told("secret-b"))
    finds("sharing.realm", readable, Severity.WARNING, "every user of the machine")
    finds("sharing.realm", machine.facts(settings=here), Severity.NOTE, "the same for all")


def test_a_request_with_a_salt(machine: Machine) -> None:
    facts = machine.facts(request={"cache_salt": "tenant"})
    finds("sharing.requests", facts, Severity.WARNING, "same salt", "one salt")
    facts = machine.facts(request={"prompt_logprobs": 1})
    finds("sharing.requests", facts, Severity.WARNING, "prompt_logprobs", "skips vLLM's own cache")


def test_requests_that_salts_keep_apart(machine: Machine) -> None:
    def counted(**outcomes: int) -> Facts:
        values = [[{"outcome": name}, count] for name, count in outcomes.items()]
        return with_snapshot(machine.facts(), metrics={"requests": {"values": values}})

    is_skipped("sharing.salts", machine.facts())
    is_fine("sharing.salts", counted(loaded=1000, other_salt=40, other_model=9))
    salted = counted(loaded=100, unknown=60, other_salt=40)
    finds("sharing.salts", salted, Severity.WARNING, "Of 200 requests, 40", "one cache_salt")
    apart = counted(loaded=100, other_model=40)
    finds("sharing.salts", apart, Severity.WARNING, "another model", "realm")


@pytest.mark.parametrize(
    "words",
    ["--mm-processor-cache-type shm", "--mm-processor-cache-gb 0 --no-enable-prefix-caching"],
)
def test_images_that_are_not_known(machine: Machine, words: str) -> None:
    facts = machine.facts(vllm=read_flags(words.split()))
    finds("sharing.media", facts, Severity.WARNING, "Requests with images")
    is_fine("sharing.media", machine.facts(vllm=read_flags(["--mm-processor-cache-gb", "0"])))


def test_one_model_in_several_namespaces(machine: Machine) -> None:
    def namespaces(*models: str) -> list[dict[str, Any]]:
        return [{"namespace": f"{n:016x}", "model": name} for n, name in enumerate(models)]

    apart = with_snapshot(machine.facts(), namespaces=namespaces("m", "n", ""))
    is_fine("sharing.namespaces", apart)
    facts = with_snapshot(machine.facts(), namespaces=namespaces("m", "n", "m"))
    finds("sharing.namespaces", facts, Severity.NOTE, "m has chunks in 2 namespaces", "weights_id")


@pytest.mark.parametrize(
    ("transfer", "words"),
    [
        ({"kv_connector": "LMCacheConnectorV1"}, "another KV connector, LMCacheConnectorV1"),
        (
            {"kv_connector": "ForebayConnector", "kv_connector_extra_config": {"drm": "1GiB"}},
            "drm is not a setting",
        ),
        (
            {
                "kv_connector": "ForebayConnector",
                "kv_connector_extra_config": {"min_tokens": 99999},
            },
            "min_tokens is 99,999",
        ),
    ],
)
def test_settings_with_which_nothing_is_shared(
    machine: Machine, transfer: dict[str, Any], words: str
) -> None:
    flags = read_flags(["--max-model-len", "8192", "--kv-transfer-config", json.dumps(transfer)])
    finds("sharing.settings", machine.facts(vllm=flags), Severity.PROBLEM, words)


def test_a_release_of_vllm_that_was_not_run(machine: Machine) -> None:
    for version in ("0.25.1", "0.33.0", "1.0.0"):
        facts = machine.facts(vllm_version=version)
        finds("sharing.vllm", facts, Severity.WARNING, version, "0.26 to 0.32")
    joined = with_snapshot(machine.facts(), engines=[{"engine": "vLLM 0.34.1"}])
    finds("sharing.vllm", joined, Severity.WARNING, "vLLM 0.34.1")
    machine.write("dev/nvidia0", "")
    facts = machine.facts(vllm_version="0.32.0+cpu")
    finds("sharing.vllm", facts, Severity.NOTE, "on CPUs only")
    is_fine("sharing.vllm", machine.facts(vllm_version="0.26.0"))


def test_flags_that_cannot_be_meant_are_one_sentence() -> None:
    for words in (["-tp", "two"], ["-sc", "{"], ["--kv-transfer-config", "[]"]):
        with pytest.raises(SettingsError, match="of vLLM"):
            read_flags(words)


def test_flags_are_read_as_vllm_reads_them() -> None:
    words = "serve Qwen/Qwen3-8B --port 1 --tensor_parallel_size=2 -dcp 2 --block-size 32 --x"
    found = read_flags(words.split())
    assert (found.model, found.tensor_parallel, found.block_tokens) == ("Qwen/Qwen3-8B", 2, 32)
    assert found.decode_context_parallel == 2
    assert read_flags(["--model", "a", "--max-model-len", "32k"]).context_tokens == 32 << 10
    assert read_flags(["--spec-model", "b"]).speculation == ""
