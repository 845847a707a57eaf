"""What is in a request's keys beside its tokens, and which requests have none; without vLLM."""

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.engines.test_adapters import adapter
from tests.pool_process import wait_until

from forebay.engines.geometry import Geometry
from forebay.engines.scheduling.request import TrackedRequest
from forebay.engines.vllm import inputs
from forebay.engines.vllm.inputs import Inputs, KeyedRequest
from forebay.engines.vllm.kinds import KINDS, Support
from forebay.identity.keys import ChainRoot

SHAPE = Geometry(("layer",), page_bytes=4096, block_tokens=16, chunk_blocks=1)
SIZE = SHAPE.chunk_tokens
ROOT = ChainRoot(b"n" * 32, SIZE)
TOKENS = list(range(4 * SIZE))


def config_of(**more: Any) -> Any:
    """What is used of a vLLM configuration; its own fields, or those of a part."""
    media = SimpleNamespace(mm_processor_cache_gb=4, video_pruning_rate=None)
    parts = {
        "lora_config": SimpleNamespace(lora_dtype="float32", max_loras=4),
        "model_config": SimpleNamespace(multimodal_config=media),
        "cache_config": SimpleNamespace(enable_prefix_caching=True),
        "ec_transfer_config": None,
    }
    return SimpleNamespace(**{**parts, **more})


def item(content: Any, identifier: str, offset: int, length: int = 8) -> Any:
    place = SimpleNamespace(offset=offset, length=length, is_embed=None)
    data = None if content is None else {"pixels": content}
    return SimpleNamespace(modality="image", data=data, identifier=identifier, mm_position=place)


def request_of(*items: Any, name: str = "request", **more: Any) -> Any:
    fields = {
        "request_id": name,
        "all_token_ids": TOKENS,
        "mm_features": list(items),
        "lora_request": None,
        "pooling_params": None,
        "prompt_embeds": None,
        "cache_salt": None,
    }
    return SimpleNamespace(**{**fields, **more})


@pytest.fixture(autouse=True)
def _nobody_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "_HASH_S", 100.0)


@pytest.fixture
def engine() -> Iterator[Inputs]:
    made = Inputs(config_of(lora_config=None), SIZE)
    yield made
    made.close()


def identified(engine: Inputs, request: Any) -> KeyedRequest | str:
    """Begin and ask as the scheduler does, until there is an answer."""
    found: list[KeyedRequest | str] = []
    engine.begin(request)

    def is_known() -> bool:
        engine.poll()
        answer = engine.identify(ROOT, request)
        if answer is not None:
            found.append(answer)
        return answer is not None

    wait_until(is_known, "an answer")
    engine.forget(request.request_id)
    return found[0]


def keys_of(engine: Inputs, request: Any) -> list[bytes]:
    found = identified(engine, request)
    assert isinstance(found, KeyedRequest), found
    tracked = TrackedRequest(request, SHAPE, found.root, found.parts)
    tracked.extend()
    return tracked.keys


def declined(engine: Inputs, request: Any) -> str:
    """Why a request has no keys; the table of kinds has it too."""
    why = identified(engine, request)
    assert isinstance(why, str)
    assert KINDS[why].support is not Support.SHARED
    return why


def test_t10_an_image_is_known_by_its_content_and_by_its_place(engine: Inputs) -> None:
    plain = keys_of(engine, request_of())
    image = keys_of(engine, request_of(item([1, 2], "a", SIZE + 2)))
    assert image[0] == plain[0], "what comes before it is shared with everybody"
    assert image[1] != plain[1]
    others = [
        request_of(item([1, 3], "b", SIZE + 2)),
        request_of(item([1, 2], "a", SIZE + 3)),
        request_of(item([1, 2], "a", SIZE + 2, length=9)),
        request_of(item([1, 2], "a", SIZE + 2), item([7], "c", SIZE + 10)),
        request_of(item([[1, 2]], "d", SIZE + 2)),
        request_of(item("[1, 2]", "e", SIZE + 2)),
    ]
    found = [image, plain, *(keys_of(engine, each) for each in others)]
    for chunk in (1, 2, 3):
        assert len({keys[chunk] for keys in found}) == len(found)
    again = request_of(item([1, 2], "another name", SIZE + 2))
    assert keys_of(engine, again) == image, "whatever it is called"


def test_t10_an_image_that_ends_in_a_later_chunk_is_in_the_keys_of_both(engine: Inputs) -> None:
    found = identified(engine, request_of(item([1], "a", SIZE - 2, length=4)))
    assert isinstance(found, KeyedRequest)
    assert found.parts is not None
    parts = [found.parts(at, at + SIZE) for at in range(0, 4 * SIZE, SIZE)]
    assert parts[0] != parts[1]
    assert all(parts[:2])
    assert parts[2:] == [b"", b""]


def test_t53_a_name_that_came_with_two_contents_is_never_believed_again(engine: Inputs) -> None:
    """What the encoder has computed by that name may be the other's, for either of them."""
    first, second = item([1], "logo", 2), item([2], "logo", 2)
    assert keys_of(engine, request_of(first))
    assert declined(engine, request_of(second)) == "media_renamed"
    assert declined(engine, request_of(first)) == "media_renamed"
    assert keys_of(engine, request_of(item([1], "other", 2)))


def test_t53_what_came_before_anything_was_shared_is_remembered(engine: Inputs) -> None:
    """A request that arrives while the weights are hashed fills the encoder's cache too."""
    engine.begin(request_of(item([1], "logo", 2), name="early"))
    engine.forget("early")
    assert declined(engine, request_of(item([2], "logo", 2))) == "media_renamed"
    assert not [name for name in engine._jobs if name == "early"]


def test_t53_too_many_doubted_names_are_no_names(
    engine: Inputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "_DOUBTED_MAX", 2)
    for number in range(3):
        for content in ([1], [2]):
            identified(engine, request_of(item(content, f"name {number}", 2)))
    assert declined(engine, request_of(item([1], "a new one", 2))) == "media_renamed"
    assert keys_of(engine, request_of())


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (
            {
                "model_config": SimpleNamespace(
                    multimodal_config=SimpleNamespace(mm_processor_cache_gb=0)
                ),
                "cache_config": SimpleNamespace(enable_prefix_caching=False),
            },
            "media_counted",
        ),
        (
            {
                "model_config": SimpleNamespace(
                    multimodal_config=SimpleNamespace(
                        mm_processor_cache_gb=4, mm_processor_cache_type="shm"
                    )
                )
            },
            "media_elsewhere",
        ),
        ({"ec_transfer_config": object()}, "media_elsewhere"),
    ],
)
def test_t53_where_images_are_not_known_by_content_they_are_declined(
    config: dict[str, Any], why: str
) -> None:
    engine = Inputs(config_of(lora_config=None, **config), SIZE)
    assert declined(engine, request_of(item([1], "renderer0-mm-1-image-0", 2))) == why
    assert keys_of(engine, request_of()), "others are shared"
    engine.close()


@pytest.mark.parametrize("content", [None, object()], ids=["not here", "not known"])
def test_an_image_that_cannot_be_hashed_is_declined(engine: Inputs, content: Any) -> None:
    assert declined(engine, request_of(item(content, "a", 2))) == "media_unknown"


def test_t10_how_images_are_encoded_is_in_their_keys() -> None:
    found = []
    for rate in (None, 0.5):
        media = SimpleNamespace(mm_processor_cache_gb=4, video_pruning_rate=rate)
        model = SimpleNamespace(multimodal_config=media)
        engine = Inputs(config_of(lora_config=None, model_config=model), SIZE)
        found.append(keys_of(engine, request_of(item([1], "a", 2))))
        engine.close()
    assert not set(found[0]) & set(found[1])


def test_a_request_waits_for_its_hash_but_not_for_ever(
    engine: Inputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()

    class Slow:
        def items(self) -> list[Any]:
            goes_on.wait(60)
            return []

    request = request_of(item(Slow(), "a", 2))
    engine.begin(request)
    assert engine.identify(ROOT, request) is None
    with monkeypatch.context() as patch:
        patch.setattr(inputs, "_HASH_S", -1.0)
        assert engine.identify(ROOT, request) == "hashing"
    goes_on.set()
    assert keys_of(engine, request)


def test_t10_embeddings_are_known_by_the_rows_of_each_chunk(engine: Inputs) -> None:
    def request(*rows: float, mask: list[bool] | None = None) -> Any:
        embeds = [[row] for row in rows for _ in range(SIZE)]
        tokens = [0] * (SIZE * len(rows))
        more: Any = {"prompt_embeds": embeds, "all_token_ids": tokens, "prompt_is_token_ids": mask}
        return request_of(**more)

    one = keys_of(engine, request(0.5, 1.5))
    assert keys_of(engine, request(0.5, 1.5)) == one
    assert keys_of(engine, request(0.5, 2.5))[0] == one[0]
    assert keys_of(engine, request(0.5, 2.5))[1] != one[1]
    assert keys_of(engine, request(0.5, 1.5, 3.5))[:2] == one, "a longer one continues it"
    mask = [True] + [False] * (2 * SIZE - 1)
    assert keys_of(engine, request(0.5, 1.5, mask=mask))[0] != one[0]
    assert not set(keys_of(engine, request_of(all_token_ids=[0] * 2 * SIZE))) & set(one)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"skip_reading_prefix_cache": True}, "skips_cache"),
        ({"resumable": True}, "resumable"),
        ({"pooling_params": object()}, "pooling"),
        ({"lora_request": SimpleNamespace()}, "adapter_unknown"),
    ],
)
def test_requests_that_have_no_keys_at_all(engine: Inputs, more: dict[str, Any], why: str) -> None:
    assert declined(engine, request_of(**more)) == why


def lora(path: str, **more: Any) -> Any:
    named = SimpleNamespace(lora_name="sql", lora_int_id=1, lora_path=path, **more)
    return request_of(lora_request=named, cache_salt="tenant")


def test_t53_adapters_of_one_name_and_other_content_share_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two engines; the second has other weights by the same name, number and directory's name."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    paths = [adapter(tmp_path / str(n) / "sql", bytes([n])) for n in range(2)]
    found = []
    for path in (*paths, paths[0]):
        engine = Inputs(config_of(), SIZE)
        assert engine.identify(ROOT, lora(path)) == "adapter_hashing", "the scheduler never waits"

        def is_known(engine: Inputs = engine, path: str = path) -> bool:
            engine.poll()
            return engine.identify(ROOT, lora(path)) != "adapter_hashing"

        wait_until(is_known, "the hash")
        found.append(keys_of(engine, lora(path)))
        plain = keys_of(engine, request_of(cache_salt="tenant"))
        assert not set(plain) & set(found[-1])
        engine.close()
    assert found[0] == found[2]
    assert not set(found[0]) & set(found[1])


def test_t53_an_adapter_that_is_replaced_in_place_is_declined_from_then_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path, engine = adapter(tmp_path / "sql"), Inputs(config_of(), SIZE)

    def is_known() -> bool:
        engine.poll()
        return engine.identify(ROOT, lora(path)) != "adapter_hashing"

    wait_until(is_known, "the hash")
    keyed = identified(engine, lora(path))
    assert isinstance(keyed, KeyedRequest)
    assert declined(engine, lora(path, load_inplace=True)) == "adapter_in_place"
    assert keyed.root.adapter in engine.poll(), "what is being computed is not stored"
    assert declined(engine, lora(path)) == "adapter_unknown"
    engine.close()
