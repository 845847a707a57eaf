"""What is declined, what is in a namespace, and what a user may write; SGLang is not needed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.engines.sglang.host_memory import MEMORY, SHAPE, facts

from forebay.engines.sglang import identity, options, weight_updates
from forebay.engines.sglang.pages import PageShape, copy_record
from forebay.engines.sharing import EngineNamespace, Obstacle
from forebay.errors import SettingsError, StartupError
from forebay.identity.keys import ChainRoot, KeyChain, page_keys
from forebay.settings import DiskSetting

EXTRA: Mapping[str, object] = {
    "backend_name": "forebay",
    "module_path": "forebay.engines.sglang.backend",
    "class_name": "ForebayStorage",
    "interface_v1": 1,
}


def name_of(**more: Any) -> bytes:
    memory = more.pop("memory", MEMORY)
    shape = more.pop("shape", SHAPE)
    weights = more.pop("weights", "one")
    space = EngineNamespace(identity.fields_of(facts("model", **more), shape, memory))
    space.know_weights(weights)
    assert space.name is not None
    return space.name


@pytest.mark.parametrize(
    "unlike",
    [
        {"weights": "another"},
        {"ranks": {"tp_rank": 1}},
        {"ranks": {"tp_size": 2}},
        {"ranks": {"pp_rank": 1}},
        {"ranks": {"attn_cp_rank": 1}},
        {"arguments": {"kv_cache_dtype": "fp8_e5m2"}},
        {"arguments": {"quantization": "awq"}},
        {"arguments": {"json_model_override_args": '{"rope_theta": 1}'}},
        {"memory": {**MEMORY, "dtype": "torch.float16"}},
        {"shape": PageShape(64, (50_000, 50_001))},
        {"shape": PageShape(64, (100_000,))},
        {"shape": PageShape(128, SHAPE.pieces)},
    ],
)
def test_t10_t11_whatever_shapes_the_bytes_is_in_the_namespace(unlike: dict[str, Any]) -> None:
    assert name_of(**unlike) != name_of()


@pytest.mark.parametrize("alike", [{"port": 1}, {"served_model_name": "a"}, {"random_seed": 3}])
def test_what_does_not_is_not(alike: dict[str, object]) -> None:
    assert name_of(arguments=alike) == name_of(arguments=dict.fromkeys(alike))


def test_t10_names_of_pages_are_names_of_nothing_else() -> None:
    """Neither in another namespace or realm, nor where another engine uses the same digest."""
    spaces = (bytes(32), b"\1" * 32)
    chunk = KeyChain(ChainRoot(spaces[0], 16)).extend(range(16))[0]
    made = [page_keys(space, realm, [chunk])[0] for space in spaces for realm in ("", "a", "b")]
    assert len({chunk, *made}) == 7
    assert page_keys(spaces[0], "a", [chunk, chunk]) == [made[1]] * 2


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"speculative_algorithm": "EAGLE"}, "speculative"),
        ({"enable_lora": True}, "LoRA"),
        ({"lora_paths": ["a=b"]}, "LoRA"),
        ({"quantization_param_path": "scales.json"}, "scales"),
        ({"dllm_algorithm": "any"}, "diffusion"),
    ],
)
def test_what_cannot_be_keyed_is_declined(arguments: dict[str, object], word: str) -> None:
    obstacle = identity.declined(facts("model", arguments=arguments))
    assert obstacle is not None
    assert word in obstacle.sentence


@pytest.mark.parametrize(
    "more", [{"is_multimodal": True}, {"is_generating": False}, {"is_watched": False}]
)
def test_other_kinds_of_models_are_declined(more: dict[str, bool]) -> None:
    assert identity.declined(facts("model", **more)) is not None


def test_what_can_be_keyed_is_not() -> None:
    assert identity.declined(facts("model")) is None
    assert identity.declined(facts("model", arguments={"speculative_algorithm": "NGRAM"})) is None


@pytest.mark.parametrize(
    "more",
    [
        {"arguments": {"load_format": "dummy"}},
        {"arguments": {"custom_weight_loader": ["a.b"]}},
        {"arguments": {"kt_weight_path": "elsewhere"}},
        {"is_from_start": False},
    ],
)
def test_weights_that_are_not_those_of_the_files_are_unknown(
    model: Path, more: dict[str, Any]
) -> None:
    assert identity.weights_directory(facts(model)) == str(model)
    unknown = identity.weights_directory(facts(model, **more))
    assert isinstance(unknown, Obstacle)
    assert "weights_id" in unknown.sentence


def test_settings_are_those_of_any_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_REALM", "ours")
    monkeypatch.setenv("FOREBAY_DRAM", "8MiB")
    settings = options.settings_of({**EXTRA, "dram": "64MiB", "disk": ["/a:1GiB"]})
    assert (settings.dram, settings.realm) == (64 << 20, "ours")
    assert settings.disk == (DiskSetting("/a", 1 << 30),)
    assert options.without_effect(options.settings_of({**EXTRA, "chunk_tokens": 64})) == [
        "chunk_tokens"
    ]


def test_a_setting_that_nobody_knows_is_an_error_of_one_sentence() -> None:
    with pytest.raises(SettingsError, match=r'extra_config\["drum"\] is not a setting; did you'):
        options.settings_of({**EXTRA, "drum": "64MiB"})


def test_host_memory_that_is_shared_is_not_taken_for_supported() -> None:
    with pytest.raises(SettingsError, match="allocator"):
        options.settings_of({**EXTRA, "allocator": "shm"})


def test_what_sglang_must_be_told_is_demanded() -> None:
    options.require_batches(EXTRA)
    options.require_prefixes(are_passed=True)
    options.require_prefixes(are_passed=None)
    for missing in ({}, {"interface_v1": 0}, None):
        with pytest.raises(SettingsError, match="interface_v1"):
            options.require_batches(missing)
    with pytest.raises(StartupError, match="hicache_storage_pass_prefix_keys"):
        options.require_prefixes(are_passed=False)


def made_updater() -> type:
    """A class like that by which SGLang changes weights."""

    class Updater:
        def update_weights_from_disk(self, path: str) -> str:
            return path

        def load_weights_from_distributed(self) -> None:
            raise ValueError("not received")

        def update_weights_from_tensor(self) -> None: ...

        def update_weights_from_ipc(self) -> None: ...

    return Updater


def test_t10_changes_of_the_weights_are_noticed_from_then_on() -> None:
    updater = made_updater()
    assert weight_updates.watch(updater)
    assert weight_updates.watch(updater), "once is enough"
    assert not weight_updates.have_changed(updater)
    assert updater().update_weights_from_disk(path="a") == "a"
    assert weight_updates.have_changed(updater)


def test_changes_that_fail_count_too() -> None:
    updater = made_updater()
    weight_updates.watch(updater)
    with pytest.raises(ValueError, match="not received"):
        updater().load_weights_from_distributed()
    assert weight_updates.have_changed(updater)


def test_a_class_that_changes_weights_otherwise_is_not_trusted() -> None:
    updater = made_updater()
    del updater.update_weights_from_ipc  # type: ignore[attr-defined]
    assert not weight_updates.watch(updater)
    assert not weight_updates.watch(None)


def test_a_record_that_is_no_page_is_not_copied() -> None:
    pieces = [memoryview(bytearray(3)), memoryview(bytearray(2))]
    assert not copy_record(memoryview(b"abcd"), pieces)
    assert bytes(pieces[0]) == bytes(3)
    assert copy_record(memoryview(b"abcde"), pieces)
    assert [bytes(piece) for piece in pieces] == [b"abc", b"de"]
