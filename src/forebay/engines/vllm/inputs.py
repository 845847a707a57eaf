"""What a request's keys cover beside its token ids; or why the request is not shared.

A LoRA adapter is identified by the hash of its files, a prompt's embeddings by the hash of each
chunk's rows. Images, audio and video are identified by the hash of what vLLM's processor made of
them, not by vLLM's identifiers: a client may choose those, vLLM does not verify them, and in some
configurations it hashes them again, so that they cannot be told from a hash of content. But vLLM
keeps what its encoder has computed by identifier. So an identifier that has come with two contents
is never shared again while the engine runs: its KV may be that of the other content.

Hashing takes a thread: a request is put off until its hashing has ended, by `_HASH_S` at most.
"""

import hashlib
import json
import logging
import time
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Any, Final

from forebay.engines.adapters import AdapterHashes
from forebay.engines.scheduling.request import Parts
from forebay.engines.vllm.kinds import KINDS
from forebay.identity.keys import ChainRoot

_HASH_S: Final = 1.0
_log: Final = logging.getLogger("forebay")
_IDENTIFIERS_MAX: Final = 1 << 16  # far more than an encoder's cache holds
_DOUBTED_MAX: Final = 1 << 12  # identifiers with two contents; with more, no identifier is trusted
# Fields of configurations that limit amounts and do not shape KV.
_SIZES: Final = {
    *("max_loras", "max_cpu_loras", "default_mm_loras", "specialize_active_lora"),
    *("limit_per_prompt", "mm_processor_cache_gb", "mm_processor_cache_type", "mm_tensor_ipc"),
    *("mm_shm_cache_max_object_size_mb", "mm_ipc_gpu_memory_gb", "skip_mm_profiling"),
    *("mm_hasher_algorithm",),
}


@dataclass(frozen=True, slots=True)
class KeyedRequest:
    """The root of a request's keys, and what its chunks have beside tokens."""

    root: ChainRoot
    parts: Parts | None = None


@dataclass(frozen=True, slots=True)
class _Item:
    """An image, or another item that takes the place of tokens in a prompt."""

    identifier: str
    digest: str  # "": the item is not here, or cannot be hashed
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class _Hashed:
    """What a request has beside tokens."""

    items: tuple[_Item, ...] = ()
    rows: tuple[str, ...] = ()  # hash of each chunk, of a prompt of embeddings


@dataclass(slots=True)
class _Hashing:
    """A request whose inputs are being hashed."""

    future: Future[_Hashed]
    begun_at: float  # monotonic
    hashed: _Hashed | None = None
    is_over: bool = False  # nobody needs it any more
    is_doubted: bool = False  # an item's identifier came with another content before


class Inputs:
    """The inputs of one engine's requests. Owned by the scheduler's thread."""

    def __init__(self, config: Any, chunk_tokens: int) -> None:
        lora = getattr(config, "lora_config", None)
        media = getattr(getattr(config, "model_config", None), "multimodal_config", None)
        self._chunk_tokens = chunk_tokens
        self._lora = _digest_of(lora)
        self._adapters = None if lora is None else AdapterHashes()
        self._told: set[int] = set()  # adapters that were logged
        self._media = _digest_of(media)
        self._declines_media = _why_no_media(config, media)
        if media is not None and self._declines_media:
            why = KINDS[self._declines_media].why
            _log.warning("Forebay shares no requests with images, audio or video: %s.", why)
        self._thread = ThreadPoolExecutor(1, "forebay-inputs")
        self._jobs: dict[str, _Hashing] = {}
        self._contents: OrderedDict[str, str] = OrderedDict()  # identifier → digest
        self._doubted: set[str] = set()

    def begin(self, request: Any) -> None:
        """A request has arrived, shared or not: begin to hash its items."""
        has_rows = getattr(request, "prompt_embeds", None) is not None
        if has_rows or (request.mm_features and not self._declines_media):
            future = self._thread.submit(_hash_inputs, request, self._chunk_tokens)
            self._jobs[request.request_id] = _Hashing(future, time.monotonic())

    def identify(self, root: ChainRoot, request: Any) -> KeyedRequest | str | None:
        """A request's keys; or the kind (of `KINDS`) why it has none; or None: ask again."""
        why = self._why_not(request)
        if why:
            return why
        root = replace(root, salt=getattr(request, "cache_salt", None) or "")
        if request.lora_request is not None:
            adapter = self._adapter_of(request.lora_request)
            if isinstance(adapter, str):
                return adapter
            root = replace(root, adapter=adapter)
        job = self._jobs.get(request.request_id)
        if job is None:
            return KeyedRequest(root)
        if job.hashed is None and not job.future.done():
            return "hashing" if time.monotonic() > job.begun_at + _HASH_S else None
        self._take_all()
        return self._keyed(root, job)

    def wait(self, request_id: str, timeout_s: float) -> None:
        """Wait until a request's inputs are hashed, at most this long."""
        job = self._jobs.get(request_id)
        if job is not None and job.hashed is None and timeout_s > 0:
            wait([job.future], timeout_s)

    def poll(self) -> set[bytes]:
        """Take over what was hashed; returns the adapters (as in roots) that have changed."""
        self._take_all()
        lost = self._adapters.poll() if self._adapters is not None else set()
        return {self._adapter_key(digest, is_3d) for digest in lost for is_3d in (False, True)}

    def _take_all(self) -> None:
        for request_id, job in list(self._jobs.items()):
            if job.hashed is None:
                if not job.future.done():
                    break  # jobs end in order
                self._take(job)
            if job.is_over:
                del self._jobs[request_id]

    def forget(self, request_id: str) -> None:
        """A request is identified, or has ended: forget its inputs."""
        job = self._jobs.get(request_id)
        if job is not None:
            job.is_over = True

    def close(self) -> None:
        """Stop hashing."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        if self._adapters is not None:
            self._adapters.close()

    def _why_not(self, request: Any) -> str:
        """The kind (of `KINDS`) for which a request is not shared by what it is; "": none."""
        kinds = {
            "skips_cache": bool(getattr(request, "skip_reading_prefix_cache", False)),
            "pooling": request.pooling_params is not None,
            "resumable": bool(getattr(request, "resumable", False)),
            self._declines_media: bool(request.mm_features and self._declines_media),
        }
        return next((kind for kind, holds in kinds.items() if holds), "")

    def _adapter_of(self, lora: Any) -> bytes | str:
        """An adapter as roots name it, or the kind why it is not known."""
        if self._adapters is None:
            return "adapter_unknown"
        if getattr(lora, "load_inplace", False):
            self._adapters.lose(lora.lora_int_id)
            return "adapter_in_place"
        digest = self._adapters.digest_of(lora.lora_int_id, lora.lora_path)
        if digest:
            return self._adapter_key(digest, bool(getattr(lora, "is_3d_lora_weight", False)))
        if digest is None:
            return "adapter_hashing"
        if lora.lora_int_id not in self._told:
            self._told.add(lora.lora_int_id)
            why = KINDS["adapter_unknown"].why
            _log.warning("Forebay shares no requests with adapter %s: %s.", lora.lora_name, why)
        return "adapter_unknown"

    def _adapter_key(self, digest: str, is_3d: bool) -> bytes:
        return hashlib.sha256(json.dumps([digest, self._lora, is_3d]).encode()).digest()

    def _take(self, job: _Hashing) -> None:
        """A job has ended. An item that could not be hashed makes its identifier untrusted."""
        failed = job.future.exception() is not None
        job.hashed = _Hashed((_Item("", "", 0, 0),)) if failed else job.future.result()
        for item in job.hashed.items:
            job.is_doubted |= not self._is_the_same(item)

    def _keyed(self, root: ChainRoot, job: _Hashing) -> KeyedRequest | str:
        hashed = job.hashed
        assert hashed is not None
        if job.is_doubted:  # verify: one content
            return "media_renamed"
        if not all(item.digest for item in hashed.items):
            return "media_unknown"
        media, rows, size = self._media, hashed.rows, self._chunk_tokens

        def parts(first: int, end: int) -> bytes:
            items = [
                [item.digest, item.offset - first, item.length]
                for item in hashed.items
                if item.offset < end and first < item.offset + item.length
            ]
            row = rows[first // size] if first // size < len(rows) else ""
            return json.dumps([media, items, row]).encode() if items or row else b""

        return KeyedRequest(root, parts)

    def _is_the_same(self, item: _Item) -> bool:
        """Whether an identifier has only ever come with this content."""
        before = self._contents.setdefault(item.identifier, item.digest)
        self._contents.move_to_end(item.identifier)
        if len(self._contents) > _IDENTIFIERS_MAX:
            self._contents.popitem(last=False)
        if before != item.digest:
            self._doubted.add(item.identifier)
        return item.identifier not in self._doubted and len(self._doubted) <= _DOUBTED_MAX


def _why_no_media(config: Any, media: Any) -> str:
    """The kind for which no request with images, audio or video is shared; "": none."""
    if media is None:
        return "media_unknown"
    has_cache = bool(getattr(media, "mm_processor_cache_gb", 0))
    if not (has_cache or config.cache_config.enable_prefix_caching):
        return "media_counted"
    is_elsewhere = getattr(media, "mm_processor_cache_type", "lru") == "shm"
    is_encoded = getattr(config, "ec_transfer_config", None) is not None
    return "media_elsewhere" if is_elsewhere or is_encoded else ""


def _digest_of(config: Any) -> str:
    """The hash of everything in a configuration that may shape KV."""
    if config is None:
        return ""
    fields = {name: value for name, value in vars(config).items() if name not in _SIZES}
    return hashlib.sha256(json.dumps(fields, sort_keys=True, default=str).encode()).hexdigest()


def _hash_inputs(request: Any, chunk_tokens: int) -> _Hashed:
    """Hash a request's inputs, on a thread of its own: hashing releases the interpreter lock."""
    items = []
    for feature in request.mm_features or ():
        place = feature.mm_position
        data = [feature.modality, feature.data, getattr(place, "is_embed", None)]
        digest = "" if feature.data is None else _hash_of(data)
        items.append(_Item(feature.identifier, digest, place.offset, place.length))
    rows = getattr(request, "prompt_embeds", None)
    if rows is None:
        return _Hashed(tuple(items))
    mask = getattr(request, "prompt_is_token_ids", None)
    hashed = [
        _hash_of([rows[at : at + chunk_tokens], str(mask and mask[at : at + chunk_tokens])])
        for at in range(0, len(rows), chunk_tokens)
    ]
    return _Hashed(tuple(items), tuple(hashed))


def _hash_of(data: Any) -> str:
    """The hash of nested values; "" if one of them is missing or of an unknown type."""
    digest = hashlib.sha256()
    return digest.hexdigest() if _add(digest, data) else ""


def _add(digest: Any, value: Any) -> bool:
    """Add a value with its type and size, so that different values never hash alike."""
    if hasattr(value, "contiguous"):
        return _add_tensor(digest, value)
    if hasattr(value, "field"):  # an item of vLLM's, whose data may be elsewhere
        return value.data is not None and _add(digest, value.data)
    if hasattr(value, "items"):
        pairs: Sequence[Any] = sorted(value.items())
        digest.update(f"map {len(pairs)};".encode())
        return all(_add(digest, [name, each]) for name, each in pairs)
    if isinstance(value, list | tuple):
        digest.update(f"list {len(value)};".encode())
        return all(_add(digest, each) for each in value)
    if value is None or isinstance(value, bool | int | float | str):
        text = json.dumps(value).encode()
        digest.update(f"value {len(text)};".encode() + text)
        return True
    return False


def _add_tensor(digest: Any, value: Any) -> bool:
    import torch  # noqa: PLC0415 - where there are tensors there is torch

    if value.device.type != "cpu":
        return False
    digest.update(f"tensor {value.dtype} {tuple(value.shape)};".encode())
    digest.update(value.detach().contiguous().flatten().view(torch.uint8).numpy())
    return True
