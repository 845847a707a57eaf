"""The hash of a model's weights, computed in a separate process and remembered by file stamp.

Weights are tens of gigabytes; an engine must not wait for them, nor share its interpreter with the
hashing. `WeightsHash` starts `python -m forebay.engines.weights DIR…` and looks, without waiting,
whether it has answered. Until then the identity of the KV cache is unknown and nothing is shared.
"""

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

_END_S: Final = 1.0  # how long an engine waits when it ends
SUFFIXES: Final = (".safetensors", ".bin", ".pt", ".pth", ".gguf")


class FoundWeights(NamedTuple):
    """The directory of a model's weight files on this machine, or why there is none."""

    directory: str
    why: str  # "": every file there can be read


class WeightsHash:
    """The hashes of the weights of an engine's models; `poll` does not wait."""

    def __init__(self, *directories: str) -> None:
        self._process: subprocess.Popen[str] | None = subprocess.Popen(
            [sys.executable, "-m", "forebay.engines.weights", *directories],
            stdout=subprocess.PIPE,
            text=True,
        )
        self._digests: list[str] | None = None
        self.why = ""  # why there will be no hash, in one sentence; "": there may be one

    def poll(self) -> list[str] | None:
        """The hash of each directory's weights once all are known, else None."""
        process = self._process
        if process is not None and process.poll() is not None:
            self._process = None
            assert process.stdout is not None
            answer = process.stdout.read().split()
            process.stdout.close()
            if process.returncode == 0 and answer:
                self._digests = answer
            else:
                self.why = "the weights are unknown, because their files cannot be read"
        return self._digests

    def close(self) -> None:
        """Stop hashing."""
        if self._process is not None:
            end_hashing(self._process)
            self._process = None


def end_hashing(process: "subprocess.Popen[str] | subprocess.Popen[bytes]") -> None:
    """Kill the process and close its pipes; on a busy machine it may end a little later."""
    process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_END_S)
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def weight_files(directory: str) -> list[Path]:
    """The files that hold weights, sorted by name."""
    return sorted(path for path in Path(directory).iterdir() if path.suffix in SUFFIXES)


def local_weights(model: str, revision: str | None) -> FoundWeights:
    """The weight files of a model, given as a directory or by its name on a hub."""
    try:
        directory = _local_directory(model, revision)
        files = weight_files(directory) if directory else []
    except OSError as error:
        return FoundWeights("", f"{model} cannot be read ({error.strerror})")
    if not files:
        return FoundWeights("", f"there are no weight files in {directory or model}")
    unreadable = next((path for path in files if not os.access(path, os.R_OK)), None)
    return FoundWeights(directory, f"{unreadable} cannot be read" if unreadable else "")


def _local_directory(model: str, revision: str | None) -> str:
    """The model's directory on this machine; "" if there is none."""
    if Path(model).is_dir():
        return model
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - only for names of a hub

    try:
        return str(snapshot_download(model, revision=revision, local_files_only=True))
    except (OSError, ValueError):  # it is not in the hub's cache, or is no name of a hub
        return ""


def hash_weights(directory: str, memory: Path) -> str:
    """Hash every weight file, or recall the hash; FileNotFoundError if there is none."""
    files = weight_files(directory)
    if not files:
        raise FileNotFoundError(directory)
    return hash_files(files, memory)


def hash_files(files: Iterable[Path], memory: Path) -> str:
    """Hash these files, names included, or recall the hash."""
    known = _read(memory)
    seen: dict[str, str] = {}
    total = hashlib.blake2b(digest_size=32)
    for path in files:
        stamp = stamp_of(path)
        digest = known.get(stamp) or _hash_file(path)
        seen[stamp] = digest
        total.update(f"{path.name}\0{digest}\0".encode())
    _write(memory, {**known, **seen})
    return total.hexdigest()


def _hash_file(path: Path) -> str:
    print(f"forebay: hashing {path.name}, once", file=sys.stderr)  # noqa: T201 - a progress line
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def stamp_of(path: Path) -> str:
    """A text that changes whenever the file does."""
    found = path.stat()
    stamp = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
    return ":".join(map(str, stamp))


def memory_path() -> Path:
    """The file in which this user's hashes are remembered."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "forebay" / "weights.json"


def _read(memory: Path) -> dict[str, str]:
    try:
        found = json.loads(memory.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write(memory: Path, known: dict[str, str]) -> None:
    """Replace the file atomically; if that fails, the weights are hashed again next time."""
    try:
        memory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=memory.parent, delete=False) as file:
            json.dump(known, file)
        Path(file.name).replace(memory)
    except OSError:
        return


def main() -> int:
    """Print the hash of each directory's weights, one a line."""
    try:
        digests = [hash_weights(each, memory_path()) for each in sys.argv[1:]]
    except OSError:
        return 1
    print(*digests, sep="\n")  # noqa: T201 - this is the answer
    return 0


if __name__ == "__main__":
    sys.exit(main())
