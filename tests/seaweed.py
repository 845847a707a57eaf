"""A real S3 server for tests: SeaweedFS on a loopback address of its own, with and without TLS."""

import json
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import obstore.store
import trustme

KEY, SECRET = "AKFOREBAYTESTS", "not-a-secret"
BUCKET: Final = "forebay-tests"
_STARTS: Final = 5  # a port may be taken between its choice and its use
_START_S: Final = 240.0
_PORTS: Final = (
    "master.port",
    "master.port.grpc",
    "volume.port",
    "volume.port.grpc",
    "filer.port",
    "filer.port.grpc",
    "s3.port",
    "s3.port.grpc",
    "s3.port.https",
)


class S3Server(NamedTuple):
    url: str
    tls_url: str
    authority: str  # a file with the certificate of who has signed the server's


@contextmanager
def serving_s3(place: Path) -> Iterator[S3Server]:
    """Until the block is left; the environment holds its credentials."""
    for start in range(_STARTS):
        directory = place / str(start)
        directory.mkdir()
        address = (
            f"127.{random.randrange(64, 250)}.{random.randrange(250)}.{random.randrange(1, 250)}"
        )
        command, server = _command(directory, address)
        with (directory / "log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, cwd=directory)
        try:
            if _is_ready(process, server):
                yield server
                return
        finally:
            process.kill()  # it takes its time to end otherwise, and nothing of it is kept
            process.wait()
    raise AssertionError((directory / "log").read_text()[-4000:])


def client(server: S3Server, prefix: str = "") -> "obstore.store.S3Store":
    """The library alone, as one would use it."""
    return obstore.store.S3Store(
        BUCKET,
        prefix=prefix or None,
        endpoint=server.url,
        region="us-east-1",
        access_key_id=KEY,
        secret_access_key=SECRET,
        client_options={"allow_http": True, "timeout": "600s"},
        retry_config={"max_retries": 0},
    )


def _command(directory: Path, address: str) -> tuple[list[str], S3Server]:
    authority = trustme.CA()
    certificate = authority.issue_cert(address)
    authority.cert_pem.write_to_path(str(directory / "authority.pem"))
    certificate.cert_chain_pems[0].write_to_path(str(directory / "certificate.pem"))
    certificate.private_key_pem.write_to_path(str(directory / "key.pem"))
    identity = {
        "name": "tests",
        "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
        "actions": ["Admin", "Read", "Write", "List"],
    }
    (directory / "s3.json").write_text(json.dumps({"identities": [identity]}))
    ports = dict(zip(_PORTS, _free_ports(address, len(_PORTS)), strict=True))
    command = [
        str(Path(sys.executable).parent / "weed"),
        "server",
        f"-ip={address}",
        f"-ip.bind={address}",
        f"-dir={directory}",
        *(f"-{name}={port}" for name, port in ports.items()),
        "-filer",
        "-s3",
        f"-s3.config={directory / 's3.json'}",
        f"-s3.cert.file={directory / 'certificate.pem'}",
        f"-s3.key.file={directory / 'key.pem'}",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-volume.max=40",
        "-master.volumeSizeLimitMB=256",
        "-master.volumePreallocate=false",
        "-master.telemetry=false",
    ]
    url = f"http://{address}:{ports['s3.port']}"
    tls_url = f"https://{address}:{ports['s3.port.https']}"
    return command, S3Server(url, tls_url, str(directory / "authority.pem"))


def _free_ports(address: str, count: int) -> list[int]:
    sockets = [socket.create_server((address, 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def _is_ready(process: "subprocess.Popen[bytes]", server: S3Server) -> bool:
    """Whether it takes objects; False if it has ended."""
    until = time.monotonic() + _START_S
    while time.monotonic() < until and process.poll() is None:
        try:
            obstore.put(client(server), "ready", os.urandom(16))
        except (obstore.exceptions.BaseError, OSError):
            time.sleep(0.2)
        else:
            return True
    return False
