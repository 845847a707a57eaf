"""What the planner is told: shapes and assumptions as options, models and results from files.

Every error is one sentence that names the option, the field or the file.
"""

import argparse
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, Final

from forebay.bench.result.files import read_json, read_pair
from forebay.cli import flags
from forebay.cli.parser import nearest
from forebay.errors import SettingsError
from forebay.plan.breakeven import KvSource
from forebay.plan.capacity import GpuMachine
from forebay.plan.fleet import PoolParts
from forebay.plan.measured import Sla, operating_point
from forebay.plan.model.config import KV_BITS, shape_of
from forebay.plan.model.known import HUB, MODELS, known_model
from forebay.plan.model.shape import ENCODED_SHARE, Shape, model_dim_shape, plain_shape
from forebay.plan.model.support import outlook
from forebay.plan.ssd import DRIVES, SsdModel, rated_bytes
from forebay.quantity import parse_size
from forebay.report.text import Section

# Clients within the SLA without and with a pool, and where they were measured.
REFERENCE_CLIENTS: Final = (16, 64)
REFERENCE: Final = "the reference result: 8 x H200, vLLM, DeepSeek-V3, NVMe tier"
_WEIGHTS: Final = ("*.safetensors", "*.bin")  # the first kind that exists; never both are counted


Arguments = argparse.Namespace
Answer = tuple[dict[str, Any], list[Section]]  # for programs, and for people


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """A model and, if known, the size of its weights."""

    shape: Shape
    weights_bytes: int | None


def _defaults(kind: type[Any]) -> dict[str, Any]:
    return {f.name: f.default for f in fields(kind) if f.default is not MISSING}


def add_assumptions(parser: argparse.ArgumentParser, kind: type[Any], **texts: str) -> None:
    """Add an option for each named field of a dataclass, with the field's default."""
    defaults = _defaults(kind)
    for name, text in texts.items():
        default = defaults[name]
        shown = "" if default is None else " (%(default)s)"
        number = flags.COUNT if isinstance(default, int) else float
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=number, default=default, metavar="N", help=f"{text}{shown}")


def assumed(arguments: argparse.Namespace, kind: type[Any]) -> dict[str, Any]:
    """The values of the options for a dataclass's fields."""
    given = vars(arguments)
    return {name: given[name] for name in _defaults(kind) if name in given}


def add_shape(parser: argparse.ArgumentParser) -> None:
    """Add MODEL, or the numbers that replace it, and the precision of its cache."""
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="a model directory, a config.json, a hub's name such as Qwen/Qwen3-8B, or one of"
        f" {', '.join(MODELS)}",
    )
    group = parser.add_argument_group("without a model")
    group.add_argument("--layers", type=flags.COUNT, metavar="L", help="layers that hold KV")
    group.add_argument("--heads", type=flags.COUNT, metavar="H", help="heads that hold KV")
    group.add_argument("--head-dim", type=flags.COUNT, metavar="D", help="numbers a head")
    group.add_argument("--model-dim", type=flags.COUNT, metavar="M", help="instead of H x D")
    bits = parser.add_mutually_exclusive_group()
    bits.add_argument(
        "--kv-dtype", choices=list(KV_BITS), help="of the cache (default: the model's own)"
    )
    bits.add_argument("--bits", type=flags.COUNT, metavar="Q", help="of one cached number")


def add_compress(parser: argparse.ArgumentParser) -> None:
    """Add `--compress`: engines store KV encoded."""
    text = f"KV is stored with `compress`, in {float(ENCODED_SHARE):.3f} of what it is"
    parser.add_argument("--compress", action="store_true", help=text)


def stored_shape(arguments: argparse.Namespace, shape: Shape) -> Shape:
    """A model's shape as it is stored in a pool."""
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


def outlook_of(arguments: argparse.Namespace, shape: Shape) -> tuple[dict[str, Any], list[str]]:
    """What docs/compatibility.md has for a model; nothing if it was given as numbers."""
    if arguments.model is None:
        return {"declined": "", "compatibility": None}, []
    found = outlook(shape)
    return found.facts(), found.lines()


def add_plot(parser: "argparse._ActionsContainer") -> None:
    """Add `--plot`: the answer as curves."""
    parser.add_argument("--plot", type=Path, metavar="FILE.html", help="also draw it")


def machine_of(arguments: argparse.Namespace, model: PlannedModel) -> GpuMachine | None:
    """The GPUs that hold the KV; None without --gpu-memory."""
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
    """A preset drive, or one described by its figures."""
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
    """Parse a tier given as NAME=SIZE, its bandwidth per second."""
    name, separator, amount = text.partition("=")
    if not separator or not name:
        raise SettingsError(f"bandwidth '{text[:40]}' is not NAME=SIZE; write one as raid=26GB.")
    return KvSource(name, parse_size(amount.removesuffix("/s")), latency_us)


def pool_parts_of(arguments: argparse.Namespace) -> PoolParts:
    """The parts of a server's pool; if the whole has a price, its parts must not."""
    sizes = {"dram_bytes": arguments.pool_dram, "nvme_bytes": arguments.pool_nvme}
    prices = {
        "dram_gib_price": arguments.dram_gib_price,
        "nvme_tb_price": arguments.nvme_tb_price,
    }
    given: dict[str, Any] = {
        **{name: parse_size(text) for name, text in sizes.items() if text is not None},
        **{name: price for name, price in prices.items() if price is not None},
    }
    if given and arguments.pool_price is not None:
        raise SettingsError(
            "pool-price is that of all parts: leave --pool-dram, --pool-nvme, --dram-gib-price and"
            " --nvme-tb-price out."
        )
    return PoolParts(**given)


def clients_under_sla(results: list[Path], sla: Sla) -> tuple[tuple[int, int], str]:
    """The clients within the SLA without and with a pool, and the source of these numbers."""
    if not results:
        if sla != Sla():
            raise SettingsError(
                "RESULT is missing; --tpot-ms, --ttft-ms, --e2e-ms and --sla-at apply to a result."
            )
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
    """Read a model directory, a `config.json`, or one of the built-in shapes."""
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
    if found := known_model(name):
        known, model = found
        return PlannedModel(shape_of(known, known, model.config, bits), model.weights_bytes)
    meant = nearest(name, [*MODELS, *HUB])
    hint = f" (did you mean {meant}?)" if meant else ""
    raise SettingsError(
        f"MODEL {name[:80]!r} is neither a directory, a config.json nor a model that is known"
        f" here{hint}; forebay plan kv --help lists those, and a config.json does for any other."
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
