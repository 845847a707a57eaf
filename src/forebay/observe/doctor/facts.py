"""What the checks look at: the command's arguments, and facts of this machine, read when needed.

Every fact is read through the `sys` layer, with the machine's `proc`, `sys` and `dev` below one
root. What cannot be read is None. Nothing is changed, except for an empty file that shows whether a
directory can be written, and the files of a drive's measurement; both are removed afterwards.
"""

import contextlib
import errno
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

from forebay.bench.disk.raw import prepared_files
from forebay.engines.start.vllm_flags import VllmFlags
from forebay.errors import DirectoryError, StartupError
from forebay.metrics.reading import total
from forebay.observe.doctor.prompts.layout import RecordedPrompt
from forebay.plan.model.shape import Shape
from forebay.pool.address import PoolAddress, find_address
from forebay.pool.client import Client
from forebay.settings import DiskSetting, Settings
from forebay.sys import scratch, sockets
from forebay.sys.clock import Clock
from forebay.sys.disk import Disk, Space
from forebay.sys.machine import mounts
from forebay.tiers.disk.options import Directory, Options
from forebay.tiers.disk.regions import directory as directories

PREFILL_TPS: Final = 20_000.0  # a GPU of today with a model of 8 billion parameters
_ATTEMPTS: Final = 3  # to join the pool, of one second each
_ANSWER_S: Final = 5.0
_IO_BYTES: Final = 4 << 20  # size of a typical record
_IO_COUNT: Final = 16  # records in the file that is read and written
_MEASURE_S: Final = 0.5  # for reads, and again for writes
_SPARE_BYTES: Final = 256 << 20  # a directory with less free space is not measured


@dataclass(frozen=True, slots=True)
class DoctorModel:
    """The model that the doctor is asked about."""

    name: str
    directory: str = ""  # of its files; empty: unknown
    shape: Shape | None = None  # None: its architecture is unknown
    is_encoder_decoder: bool = False


@dataclass(frozen=True, slots=True)
class DoctorInputs:
    """The command's arguments, and what it knows of its environment."""

    settings: Settings = field(default_factory=Settings)
    model: DoctorModel | None = None
    prefill_tps: float | None = None  # prompt tokens a second; None: PREFILL_TPS is assumed
    gpu_cache_bytes: int | None = None  # size of the engine's own KV cache
    vllm: VllmFlags | None = None
    request: Mapping[str, Any] | None = None  # the body of a request, as clients send it
    prompts: tuple[RecordedPrompt, ...] | None = None  # to be compared with each other
    measures: bool | None = None  # whether to measure drives; None: those that no pool uses
    environment: Mapping[str, str] = field(default_factory=dict)
    vllm_version: str = ""  # that is installed beside this Forebay; empty: none


class DriveSpeed(NamedTuple):
    """The measured speed of a directory's drive."""

    read_bytes_s: float
    write_bytes_s: float


class DirectoryFacts(NamedTuple):
    """The facts of one directory."""

    setting: DiskSetting
    refusal: str  # a sentence on why a pool could not use it; empty: it could
    is_direct: bool | None = None  # whether it supports O_DIRECT
    space: Space | None = None
    held_bytes: int = 0  # that its regions take
    mount: mounts.Mount | None = None
    lock_holder: int | None = None  # the process of a pool that uses it
    is_open: bool = True  # False: space and mount are those of its nearest existing parent

    @property
    def regions(self) -> int:
        """How many region files a pool keeps open for it."""
        wanted = Directory(*self.setting)
        try:
            size = directories.region_bytes(wanted, Options().region_bytes)
        except DirectoryError:  # its cap is too small, and a pool says so
            return 0
        return directories.usable_bytes(wanted.cap_bytes) // size + 1


class PoolFacts(NamedTuple):
    """The pool at the socket of the settings, if there is one."""

    address: PoolAddress | None
    stats: Mapping[str, Any] | None  # None: no pool has answered
    why: str = ""  # no pool has answered, a sentence

    def listed(self, name: str) -> list[dict[str, Any]]:
        """The objects in a list of its statistics."""
        found = (self.stats or {}).get(name)
        return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []

    def counted(self, metric: str, **labels: str) -> float:
        """The sum of a metric's values with these labels; 0 if there are none."""
        stats = self.stats or {}
        return total(stats, metric, **labels) if "metrics" in stats else 0.0


class Facts:
    """The facts of one run; each is read once, when a check first asks for it. One thread."""

    def __init__(
        self,
        inputs: DoctorInputs,
        disk: Disk | None = None,
        root: Path = Path("/"),
        clock: Clock | None = None,
    ) -> None:
        self.inputs = inputs
        self.settings = inputs.settings
        self.disk = disk or Disk()
        self.clock = clock or Clock()  # for waiting for a pool
        self.root = root  # contains `proc`, `sys` and `dev`

    @cached_property
    def directories(self) -> list[DirectoryFacts]:
        """The facts of every directory in `disks`."""
        return [self._directory(setting) for setting in self.disks]

    @cached_property
    def disks(self) -> list[DiskSetting]:
        """The directories of the settings; without any, those that the running pool uses.

        A pool only tells the total size of its directories: if there are several, each one's size
        is unknown, and 0 here.
        """
        if self.settings.disk:
            return list(self.settings.disk)
        tier = next((each for each in self.pool.listed("tiers") if each.get("name") == "disk"), {})
        paths = [str(volume.get("path")) for volume in tier.get("volumes") or []]
        cap_bytes = int(tier.get("cap_bytes") or 0) if len(paths) == 1 else 0
        return [DiskSetting(path, cap_bytes) for path in paths]

    @cached_property
    def pool(self) -> PoolFacts:
        """The running pool; waits a few seconds for an answer."""
        try:
            address = find_address(self.settings.socket)
        except StartupError as error:
            return PoolFacts(None, None, str(error))
        uids = self.settings.allow_uid
        with Client(address.path, self.clock, pool_uids=uids, is_operator=True) as client:
            if not any(client.join() for _ in range(_ATTEMPTS)):
                return PoolFacts(address, None, client.why)
            stats = client.stats(_ANSWER_S)
        if not isinstance(stats, dict):
            return PoolFacts(address, None, "the pool does not answer.")
        return PoolFacts(address, stats)

    @cached_property
    def pool_process(self) -> int | str:
        """The running pool's process, by its number in `proc`; else "self", our own."""
        if self.pool.stats is None or self.pool.address is None:
            return "self"
        try:
            with sockets.connect(self.pool.address.path) as connection:
                pid = sockets.peer_of(connection).pid
                return pid if pid > 0 else "self"
        except OSError:  # it is gone, or has no place for another connection
            return "self"

    @cached_property
    def is_listened_at(self) -> bool:
        """Whether a process listens at the socket, even if it does not answer."""
        if self.pool.address is None:
            return False
        try:
            sockets.connect(self.pool.address.path).close()
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:  # its backlog is full, or we may not connect
            return True
        return True

    @cached_property
    def speeds(self) -> dict[str, DriveSpeed | str]:
        """By directory, how fast its drive is, or why that was not measured."""
        return {each.setting.path: self._speed(each) for each in self.directories}

    @property
    def prefill_tps(self) -> float:
        """Prompt tokens that the engine computes per second, as given or assumed."""
        return self.inputs.prefill_tps or PREFILL_TPS

    def _directory(self, setting: DiskSetting) -> DirectoryFacts:
        try:
            descriptor = self.disk.open_directory(setting.path)
        except OSError as error:
            return self._unopened(setting, str(directories.cannot_open(setting.path, error)))
        try:
            is_direct, refusal = self._probe(setting.path, descriptor)
            space = self.disk.space(descriptor)
            names = [name for _, name in directories.region_names(self.disk, descriptor)]
            held_bytes = sum(self._allocated(descriptor, name) for name in names)
        except OSError as error:
            refusal = str(directories.medium_error(setting.path, error))
            is_direct, space, held_bytes = None, None, 0
        finally:
            self.disk.close(descriptor)
        mount = mounts.mount_of(setting.path, self.root)
        holder = mounts.lock_holder(setting.path, self.root)
        return DirectoryFacts(setting, refusal, is_direct, space, held_bytes, mount, holder)

    def _unopened(self, setting: DiskSetting, refusal: str) -> DirectoryFacts:
        """The facts of a directory that cannot be opened; its nearest parent stands in for it."""
        parent = Path(os.path.abspath(setting.path)).parent  # noqa: PTH100 - no link is followed
        parent = next((each for each in (parent, *parent.parents) if each.is_dir()), Path("/"))
        space = None
        if self.settings.disk and not os.path.lexists(setting.path):
            with contextlib.suppress(OSError):
                descriptor = self.disk.open_directory(str(parent))
                try:
                    space = self.disk.space(descriptor)
                finally:
                    self.disk.close(descriptor)
        mount = mounts.mount_of(str(parent), self.root)
        return DirectoryFacts(setting, refusal, space=space, mount=mount, is_open=False)

    def _allocated(self, directory: int, name: str) -> int:
        try:
            return self.disk.status_of(directory, name).allocated_bytes
        except FileNotFoundError:  # evicted meanwhile
            return 0

    def _probe(self, path: str, directory: int) -> tuple[bool | None, str]:
        """Whether it supports O_DIRECT (None: unknown), and why no file in it can be written."""
        try:
            directories.refuse_unsafe(self.disk, path, directory)
        except DirectoryError as error:
            return None, str(error)
        for direct in (True, False):
            try:
                self._try_file(directory, direct=direct)
            except OSError as error:
                if direct and error.errno == errno.EINVAL:
                    continue
                return None, (
                    f"{path} cannot be written ({error.strerror}); choose a directory of your own"
                    " on a writable file system."
                )
            return direct, ""
        return None, ""

    def _try_file(self, directory: int, *, direct: bool) -> None:
        """Create a file and remove it, even if O_DIRECT is refused after it was created."""
        name = f".forebay-doctor-{secrets.token_hex(6)}"
        try:
            opened = self.disk.open(directory, name, create=True, direct=direct, write=True)
            self.disk.close(opened)
        finally:
            with contextlib.suppress(FileNotFoundError):
                self.disk.unlink(directory, name)

    def _speed(self, facts: DirectoryFacts) -> DriveSpeed | str:
        path, measures = facts.setting.path, self.inputs.measures
        if measures is False:
            return f"{path} was not measured, as asked."
        if facts.refusal:
            return f"{path} was not measured: it cannot be used."
        if facts.lock_holder is not None and measures is None:
            return f"{path} was not measured, since a pool is using it; --measure does it anyway."
        if facts.space is not None and facts.space.free_bytes < _SPARE_BYTES:
            return f"{path} was not measured: there is no free space for it."
        if not facts.is_direct:
            return f"{path} was not measured: without O_DIRECT, reads come from memory."
        depth = self.settings.read_depth, self.settings.write_depth
        try:
            with (
                scratch.scratch(path) as place,
                prepared_files([place], _IO_BYTES, _IO_COUNT) as raw,
            ):
                read, write = (min(each, len(raw.buffers)) for each in depth)
                return DriveSpeed(
                    raw.read(read, _MEASURE_S) * 1e9, raw.write(write, _MEASURE_S) * 1e9
                )
        except OSError as error:
            return f"{path} was not measured ({error.strerror})."
