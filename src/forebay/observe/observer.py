"""The observer of a pool: an HTTP server whose answers come from snapshots.

    /                 the dashboard, a page that uses the last two
    /metrics          text for Prometheus
    /healthz          200 if a record came back exact from every tier in time, else 503
    /readyz           200 if the pool's thread answers, else 503
    /stats.json       what `forebay stats --json` prints
    /requests.json    recent requests; ?after=N and ?last=N choose among them

The pool's thread takes snapshots between two rounds, and each is used for `FRESH_S`; what takes
time, writing text and JSON, happens on the client's own thread.
"""

import logging
import threading
import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from forebay.barrier import Barrier
from forebay.observe import dashboard
from forebay.observe.access import Access
from forebay.observe.exposition import CONTENT_TYPE, Exposition
from forebay.observe.health import HealthCheck
from forebay.observe.http import HttpHandler, HttpRequest, HttpResponse, HttpServer
from forebay.pool.core.recent.requests import AT_ONCE, RecentRequest
from forebay.pool.service import Service
from forebay.pool.wire import json_bytes
from forebay.settings import Settings

FRESH_S: Final = 1.0
ANSWER_S: Final = 2.0  # that the pool's thread has to answer; longer than it is ever busy
REQUESTS_MAX: Final = 1000  # in one answer
_JSON: Final = "application/json"
_BUSY: Final = HttpResponse(HTTPStatus.SERVICE_UNAVAILABLE, b"the pool did not answer in time\n")
_log: Final = logging.getLogger(__name__)


class Observer:
    """Answers for one pool. Any thread may call `answer`; the lock guards the snapshot."""

    def __init__(self, service: Service, access: Access | None = None) -> None:
        """Without `access`, everything is shown to everybody."""
        self._service, self._access = service, access
        self._health = HealthCheck(service, service.address.path)
        self._exposition = Exposition()
        self._lock = threading.Lock()
        self._stats: dict[str, Any] | None = None
        self._taken_at = -FRESH_S  # when the last attempt at a snapshot ended, monotonic
        self._routes: dict[str, HttpHandler] = {
            "/metrics": self._metrics,
            "/healthz": self._healthz,
            "/readyz": self._readyz,
            "/stats.json": self._stats_json,
            "/requests.json": self._requests_json,
            **dict.fromkeys(dashboard.PATHS, self._page),
        }

    def answer(self, request: HttpRequest) -> HttpResponse:
        """The answer to a request."""
        handler = self._routes.get(request.path)
        if handler is None:
            paths = " ".join(sorted(self._routes)).encode()
            return HttpResponse(HTTPStatus.NOT_FOUND, b"there is: " + paths + b"\n")
        return handler(request)

    def stats(self) -> dict[str, Any] | None:
        """A snapshot no older than `FRESH_S`; None if the pool did not answer in time.

        A missing answer is remembered for `FRESH_S` as well, so that waiting callers do not wait
        again.
        """
        if not self._lock.acquire(timeout=2 * ANSWER_S):
            return None
        try:
            if time.monotonic() - self._taken_at >= FRESH_S:
                self._stats = self._service.stats(ANSWER_S)
                self._taken_at = time.monotonic()
                if self._stats is not None:
                    self._stats["metrics"]["healthy"]["values"] = self._health.series()
            return self._stats
        finally:
            self._lock.release()

    def _page(self, request: HttpRequest) -> HttpResponse:
        file = dashboard.read(request.path)
        return HttpResponse(
            body=file.body, content_type=file.content_type, headers=dashboard.HEADERS
        )

    def _metrics(self, _request: HttpRequest) -> HttpResponse:
        self._service.scraped()
        self._health.refresh()
        stats = self.stats()
        if stats is None:
            return _BUSY
        return HttpResponse(body=self._exposition.text(stats), content_type=CONTENT_TYPE)

    def _healthz(self, _request: HttpRequest) -> HttpResponse:
        report = self._health.report()
        body = {"ok": report.is_well, "checks": report.checks}
        return _json(body, HTTPStatus.OK if report.is_well else HTTPStatus.SERVICE_UNAVAILABLE)

    def _readyz(self, _request: HttpRequest) -> HttpResponse:
        return _json({"ok": True}) if self.stats() is not None else _BUSY

    def _stats_json(self, _request: HttpRequest) -> HttpResponse:
        self._health.refresh()
        stats = self.stats()
        return _BUSY if stats is None else _json(_stats_text(stats))

    def _requests_json(self, request: HttpRequest) -> HttpResponse:
        after = _whole(request.query.get("after", "0"))
        last = _whole(request.query.get("last", str(REQUESTS_MAX)))
        if after is None or last is None:
            return HttpResponse(HTTPStatus.BAD_REQUEST, b"after and last are whole numbers\n")
        refused = self._access and self._access.refusal_of_requests(request.peer_uid)
        if refused:
            return HttpResponse(HTTPStatus.FORBIDDEN, f"{refused}\n".encode())
        found = self._service.requests(after, min(last, REQUESTS_MAX), ANSWER_S)
        return _BUSY if found is None else _json(_joined(found))


def start(
    settings: Settings, service: Service, barrier: Barrier, access: Access | None
) -> HttpServer | None:
    """Answer for a pool at the address of `access`; None, with one line in the log, on failure."""
    if access is None:
        return None
    observer = Observer(service, access)
    try:
        server = HttpServer(access, observer.answer, barrier)
    except (OSError, RuntimeError) as error:
        why = getattr(error, "strerror", None) or error
        _log.warning("no metrics at %s (%s)", settings.metrics_address, why)
        return None
    service.answers_http_at(server.url.removeprefix("http://"))
    token = ", with a token" if access.needs_token else ""
    _log.info("a dashboard at %s/, metrics at %s/metrics%s", server.url, server.url, token)
    return server


def _json(found: object, status: HTTPStatus = HTTPStatus.OK) -> HttpResponse:
    body = found if isinstance(found, bytes) else json_bytes(found)
    return HttpResponse(status, body + b"\n", _JSON)


def _stats_text(stats: Mapping[str, Any]) -> bytes:
    """A snapshot as JSON, written in pieces like requests: it has some 10,000 numbers."""
    texts = []
    for name, family in stats["metrics"].items():
        texts.append(json_bytes(name) + b": " + json_bytes(family))
        time.sleep(0)
    rest = json_bytes({name: part for name, part in stats.items() if name != "metrics"})
    return rest[:-1] + b', "metrics": {' + b", ".join(texts) + b"}}"


def _joined(requests: list[RecentRequest]) -> bytes:
    """Requests as a JSON list, written in pieces so that the pool's thread can run in between."""
    texts = []
    for number, request in enumerate(requests, 1):
        texts.append(request.to_json())
        if not number % AT_ONCE:
            time.sleep(0)
    return b"[" + b", ".join(texts) + b"]"


def _whole(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) <= 15 else None
