"""What the planner is told: shapes and assumptions as options, models and results from files.

Every error is one sentence that names the option, the field or the file.
"""

import argparse
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, Final

from forebay.bench.result.files import read_json, read_pair
from forebay.errors import SettingsError
from forebay.plan.breakeven import KvSource
from forebay.plan.capacity import GpuMachine
from forebay.plan.measured import Sla, operating_point
from forebay.plan.model.config import KV_BITS, shape_of
from forebay.plan.model.known import MODELS
from forebay.plan.model.shape import ENCODED_SHARE, Shape, model_dim_shape, plain_shape
from forebay.plan.ssd import DRIVES, SsdModel, rated_bytes
from forebay.quantity import parse_size

# Clients under the SLA without and with a pool, and where they were measured.
REFERENCE_CLIENTS: Final = (16, 64)
REFERENCE: Final = "the reference result: 8 x H200, vLLM, DeepSeek-V3, NVMe tier"
_WEIGHTS: Final = ("*.safetensors", "*.bin")  # the first that is there; never both of a checkpoint


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """A model and, where it is known, what its weights take."""

    shape: Shape
    weights_bytes: int | None


def _defaults(kind: type[Any]) -> dict[str, Any]:
    return {f.name: f.default for f in fields(kind) if f.default is not MISSING}


def add_assumptions(parser: argparse.ArgumentParser, kind: type[Any], **texts: str) -> None:
    """An option for each named field of a dataclass, with the field's own default."""
    defaults = _defaults(kind)
    for name, text in texts.items():
        default = defaults[name]
        shown = "" if default is None else " (%(default)s)"
        number = int if isinstance(default, int) else float
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=number, default=default, metavar="N", help=f"{text}{shown}")


def assumed(arguments: argparse.Namespace, kind: type[Any]) -> dict[str, Any]:
    """What was given, or left at its default, for the fields of a dataclass."""
    given = vars(arguments)
    return {name: given[name] for name in _defaults(kind) if name in given}


def add_shape(parser: argparse.ArgumentParser) -> None:
    """MODEL, or the numbers that stand for one, and the precision of its cache."""
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help=f"a model directory, a config.json, or one of {', '.join(MODELS)}",
    )
    group = parser.add_argument_group("without a model")
    group.add_argument("--layers", type=int, metavar="L", help="layers that hold KV")
    group.add_argument("--heads", type=int, metavar="H", help="heads that hold KV")
    group.add_argument("--head-dim", type=int, metavar="D", help="numbers a head")
    group.add_argument("--model-dim", type=int, metavar="M", help="instead of H x D")
    bits = parser.add_mutually_exclusive_group()
    bits.add_argument(
        "--kv-dtype", choices=list(KV_BITS), help="of the cache (default: the model's own)"
    )
    bits.add_argument("--bits", type=int, metavar="Q", help="of one cached number")


def add_compress(parser: argparse.ArgumentParser) -> None:
    """Whether engines store KV encoded."""
    text = f"KV is stored with `compress`, in {float(ENCODED_SHARE):.3f} of what it is"
    parser.add_argument("--compress", action="store_true", help=text)


def stored_shape(arguments: argparse.Namespace, shape: Shape) -> Shape:
    """A model's shape as it lies in a pool."""
    if not arguments.compress:
        return shape
    if arguments.kv_dtype == "float16":
        raise SettingsError("compress encodes KV in bfloat16 only, not float16; leave it out.")
    return shape.encoded()


def model_of(arguments: argparse.Namespace) -> PlannedModel:
    """The model that the options of `add_shape` name."""
    bits = KV_BITS[arguments.kv_dtype] if arguments.kv_dtype else arguments.bits
    layers, heads, head_dim = arguments.layers, arguments.heads, arguments.head_dim
    sizes = (layers, heads, head_dim, arguments.model_dim)
    if arguments.model is not None:
        if any(number is not None for number in sizes):
            raise SettingsError(
                "MODEL excludes --layers, --heads, --head-dim and --model-dim; give one or the"
                " other."
            )
        return read_model(arguments.model, bits)
    bits = 16 if bits is None else bits
    if layers is not None and arguments.model_dim is not None and heads is head_dim is None:
        return PlannedModel(model_dim_shape(layers, arguments.model_dim, bits), None)
    if None not in {layers, heads, head_dim} and arguments.model_dim is None:
        return PlannedModel(plain_shape(layers, heads, head_dim, bits), None)
    raise SettingsError(
        "MODEL is missing; name one, or give --layers with --heads and --head-dim or --model-dim."
    )


def machine_of(arguments: argparse.Namespace, model: PlannedModel) -> GpuMachine | None:
    """The GPUs to fill; none without --gpu-memory."""
    if arguments.gpu_memory is None:
        if arguments.gpus is not None or arguments.weights is not None:
            raise SettingsError("gpu-memory is missing; --gpus and --weights need --gpu-memory.")
        return None
    weights_bytes = (
        model.weights_bytes if arguments.weights is None else parse_size(arguments.weights)
    )
    if weights_bytes is None:
        raise SettingsError("weights is missing; give --weights, the size of the model's files.")
    gpus = 1 if arguments.gpus is None else arguments.gpus
    return GpuMachine(
        gpus=gpus,
        gpu_memory_bytes=parse_size(arguments.gpu_memory),
        weights_bytes=weights_bytes,
        pool_bytes=parse_size(arguments.pool),
        tp=gpus if arguments.tp is None else arguments.tp,
        utilization=arguments.utilization,
        reserve_bytes=parse_size(arguments.reserve),
    )


def drive_of(arguments: argparse.Namespace) -> SsdModel:
    """A preset, or a drive from its own figures."""
    capacity_text, random_text = arguments.capacity, arguments.tbw_random
    sequential_text, years = arguments.tbw_sequential, arguments.warranty_years
    own = (capacity_text, random_text, sequential_text, arguments.dwpd, years)
    if arguments.drive is not None:
        if any(value is not None for value in own):
            raise SettingsError(
                "drive is a preset: leave --capacity, --dwpd, --tbw-* and --warranty-years out."
            )
        return DRIVES[arguments.drive]
    if capacity_text is None:
        raise SettingsError("drive is missing; give --drive, or --capacity with an endurance.")
    if (random_text is None) == (arguments.dwpd is None):
        raise SettingsError("dwpd or tbw-random: give exactly one of them with --capacity.")
    capacity_bytes = parse_size(capacity_text)
    years = 5.0 if years is None else years
    return SsdModel(
        name=f"{capacity_text} drive",
        capacity_bytes=capacity_bytes,
        random_bytes=rated_bytes(capacity_bytes, arguments.dwpd, years)
        if random_text is None
        else parse_size(random_text),
        sequential_bytes=None if sequential_text is None else parse_size(sequential_text),
        warranty_years=years,
    )


def measured_source(text: str, latency_us: float) -> KvSource:
    """A tier as NAME=SIZE a second."""
    name, separator, amount = text.partition("=")
    if not separator or not name:
        raise SettingsError(f"bandwidth '{text[:40]}' is not NAME=SIZE; write one as raid=26GB.")
    return KvSource(name, parse_size(amount.removesuffix("/s")), latency_us)


def clients_under_sla(results: list[Path], sla: Sla) -> tuple[tuple[int, int], str]:
    """Clients without and with a pool, and where the two numbers come from."""
    if not results:
        if sla != Sla():
            raise SettingsError("RESULT is missing; --tpot-ms and --ttft-ms apply to a result.")
        return REFERENCE_CLIENTS, f"{REFERENCE} ({sla})"
    if len(results) > 2:
        raise SettingsError("RESULT may be given once (A/B) or twice (without, with).")
    pair = read_pair(*results)
    names = [str(path) for path in results]
    sources = names if len(names) == 2 else [f"{side} in {names[0]}" for side in ("off", "on")]
    without = operating_point(sources[0], pair.off.steps, sla).clients
    pooled = operating_point(sources[1], pair.on.steps, sla).clients
    return (without, pooled), f"{' and '.join(sources)} ({sla})"


def read_model(name: str, bits: int | None) -> PlannedModel:
    """A model directory, a `config.json`, or one of the built-in shapes."""
    path = Path(name)
    try:
        is_directory, exists = path.is_dir(), path.exists()
    except (OSError, ValueError):  # a name that no file system takes
        is_directory = exists = False
    if is_directory:
        config = path / "config.json"
        shape = shape_of(path.resolve().name, str(config), read_json(config), bits)
        return PlannedModel(shape, _weights_bytes(path))
    if exists:
        return PlannedModel(shape_of(path.stem, str(path), read_json(path), bits), None)
    for known, model in MODELS.items():
        if known.lower() == name.lower():
            return PlannedModel(shape_of(known, known, model.config, bits), model.weights_bytes)
    raise SettingsError(
        f"MODEL {name[:80]!r} is neither a directory, a config.json nor one of {', '.join(MODELS)}."
    )


def _weights_bytes(directory: Path) -> int | None:
    for pattern in _WEIGHTS:
        try:
            if total_bytes := sum(path.stat().st_size for path in directory.glob(pattern)):
                return total_bytes
        except OSError as error:
            raise SettingsError(
                f"{directory} has weights that cannot be read: {error.strerror}."
            ) from error
    return None
