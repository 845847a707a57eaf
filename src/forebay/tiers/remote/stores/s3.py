"""A store on S3 (AWS, MinIO, SeaweedFS, Ceph and others), through obstore.

obstore puts, lists, deletes and signs. `http.py` reads bytes from signed URLs, since obstore reads
into memory of its own, as much as a server claims to have. Nothing is retried. Payloads are signed
over plain HTTP, and protected by TLS otherwise. After a server's 403 the next call looks for
credentials anew. An object counts as absent only if the server says so in S3's words: what answers
in its place (a proxy) may know nothing.
"""

import asyncio
import itertools
import os
import re
import ssl
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, TypeVar

import obstore.store
from obstore.exceptions import BaseError

from forebay.tiers.remote.store import LISTED_MAX, ObjectStore, StoredObject, StoreFailure, is_name
from forebay.tiers.remote.stores import credentials
from forebay.tiers.remote.stores.http import HttpReader, HttpReply
from forebay.urls import RemoteUrl

_PUT_FACTOR: Final = 3  # a pack may take so many times as long as another request
_LIST_FACTOR: Final = 4  # and so may a listing, which has pages
_CONNECT_FACTOR: Final = 0.5
_SIGNED_FOR: Final = timedelta(minutes=15)  # clocks may differ by so much, as S3 itself allows
_ENDPOINTS: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_NO_KEY, _PAST_END = b"<Code>NoSuchKey</Code>", 416
_STATUS: Final = re.compile(r"status code: (\d{3})")
_FAILURES: Final = {401: StoreFailure.DENIED, 403: StoreFailure.DENIED, 507: StoreFailure.FULL}
_FULL: Final = re.compile(r"<Code>\w*(Quota|StorageFull|InsufficientStorage|NoSpace)\w*</Code>")
_Result = TypeVar("_Result")


class S3Store(ObjectStore):
    """One bucket, or what is below a prefix of it."""

    def __init__(self, url: RemoteUrl) -> None:
        """Connects to nothing yet."""
        self._url = url
        endpoints = (os.environ.get(name, "") for name in _ENDPOINTS)
        self._endpoint = url.endpoint or next(filter(None, endpoints), "")
        self._is_tls = not self._endpoint.startswith("http://")
        authorities = os.environ.get("AWS_CA_BUNDLE") or os.environ.get("SSL_CERT_FILE")
        self._authorities = Path(authorities) if authorities else None
        self._reader = HttpReader(context=self._context())
        self._lock = threading.Lock()  # guards the clients and the counts
        self._clients: dict[float, obstore.store.S3Store] = {}  # by their timeout
        self.requests = 0  # that were sent; a listing counts once, whatever its pages
        self.sent_bytes = self.received_bytes = 0

    def put(self, name: str, buffers: Sequence[memoryview]) -> StoreFailure | None:
        """See ObjectStore."""
        timeout_s = self._url.timeout_s * _PUT_FACTOR
        done = self._attempt(
            lambda: obstore.put(self._client(timeout_s), name, list(buffers), use_multipart=False)
        )
        if isinstance(done, StoreFailure):
            return done
        self._count(sent=sum(map(len, buffers)))
        return None

    def get(self, name: str, at: int, buffers: Sequence[memoryview]) -> int | StoreFailure:
        """See ObjectStore."""
        timeout_s = self._url.timeout_s
        url = self._attempt(lambda: obstore.sign(self._client(timeout_s), "GET", name, _SIGNED_FOR))
        if isinstance(url, StoreFailure):
            return url
        reply = self._reader.read(str(url), at, buffers, timeout_s)
        outcome = StoreFailure.FAILED if reply is None else _outcome(reply)
        if isinstance(outcome, int):
            self._count(received=outcome)
        return self._noted(outcome)

    def listing(self, prefix: str) -> list[StoredObject] | StoreFailure:
        """See ObjectStore. If there is more than fits, the rest is not seen."""
        wait_s = self._url.timeout_s * _LIST_FACTOR

        async def listed() -> dict[str, Any]:
            client = self._client(self._url.timeout_s)
            call = obstore.list_with_delimiter_async(client, prefix.rstrip("/"))
            return await asyncio.wait_for(call, wait_s)

        found = self._attempt(lambda: asyncio.run(listed()))
        if isinstance(found, StoreFailure):
            return found
        above = [StoredObject(f"{_last(each)}/", 0, 0.0) for each in found["common_prefixes"]]
        objects = (
            StoredObject(_last(each["path"]), each["size"], each["last_modified"].timestamp())
            for each in found["objects"]
        )
        both = (each for each in itertools.chain(above, objects) if is_name(each.name.rstrip("/")))
        return list(itertools.islice(both, LISTED_MAX))

    def delete(self, name: str) -> StoreFailure | None:
        """See ObjectStore."""
        timeout_s = self._url.timeout_s
        done = self._attempt(lambda: _delete(self._client(timeout_s), name))
        return done if isinstance(done, StoreFailure) else None

    def close(self) -> None:
        """Close the idle connections."""
        self._reader.close()

    def _attempt(self, call: Callable[[], _Result]) -> _Result | StoreFailure:
        self._count(requests=1)
        try:
            return call()
        except (BaseError, OSError, ValueError) as error:
            return self._noted(_failure(error))

    def _noted(self, outcome: _Result) -> _Result:
        """After a refusal, let the next call read the credentials again."""
        if outcome is StoreFailure.DENIED:
            with self._lock:
                self._clients = {}
        return outcome

    def _count(self, requests: int = 0, sent: int = 0, received: int = 0) -> None:
        with self._lock:
            self.requests += requests
            self.sent_bytes += sent
            self.received_bytes += received

    def _client(self, timeout_s: float) -> obstore.store.S3Store:
        with self._lock:
            if timeout_s not in self._clients:
                self._clients[timeout_s] = self._opened(timeout_s)
            return self._clients[timeout_s]

    def _opened(self, timeout_s: float) -> obstore.store.S3Store:
        bucket, _, prefix = self._url.path.partition("/")
        config: dict[str, Any] = {"unsigned_payload": self._is_tls}
        region = self._url.region or credentials.profile_of(os.environ).get("region", "")
        if region and (self._url.region or not os.environ.get("AWS_REGION")):
            config["region"] = region
        if self._endpoint:
            config["endpoint"] = self._endpoint
        client: dict[str, Any] = {
            "allow_http": self._url.endpoint.startswith("http://"),
            "timeout": timedelta(seconds=timeout_s),
            "connect_timeout": timedelta(seconds=self._url.timeout_s * _CONNECT_FACTOR),
        }
        if self._authorities is not None:
            client["root_certificate"] = self._authorities.read_bytes()
        return obstore.store.S3Store(
            bucket,
            prefix=prefix or None,
            config=config,
            client_options=client,
            retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=timeout_s)},
            credential_provider=credentials.from_files(os.environ),
        )

    def _context(self) -> ssl.SSLContext | None:
        if not self._is_tls:
            return None
        context = ssl.create_default_context()
        if self._authorities is not None:
            context.load_verify_locations(self._authorities)
        return context


def _outcome(reply: HttpReply) -> int | StoreFailure:
    if reply.status in (200, 206):
        return reply.filled
    if reply.status == _PAST_END:
        return 0
    if reply.status == 404:
        return StoreFailure.ABSENT if _NO_KEY in reply.text else StoreFailure.FAILED
    return _FAILURES.get(reply.status, StoreFailure.FAILED)


def _failure(error: Exception) -> StoreFailure:
    """The status is only in the text, with the server's own words: it is never logged."""
    text = str(error)
    if isinstance(error, FileNotFoundError):
        return StoreFailure.ABSENT  # the bucket: nothing that is read or deleted gets here
    if _FULL.search(text):
        return StoreFailure.FULL
    status = _STATUS.search(text)
    return _FAILURES.get(int(status[1]) if status else 0, StoreFailure.FAILED)


def _delete(client: obstore.store.S3Store, name: str) -> None:
    try:
        obstore.delete(client, name)
    except FileNotFoundError as error:
        if _NO_KEY.decode() not in str(error):
            raise


def _last(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]
