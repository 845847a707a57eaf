"""How many GPUs and servers a load needs, and what they cost, without a pool and with one."""

import math
from dataclasses import dataclass, field
from typing import Final

from forebay.errors import SettingsError
from forebay.plan.number import real, whole


@dataclass(frozen=True, slots=True)
class GpuNeed:
    """GPUs for a target rate; rates are tokens or requests per second, both of one kind."""

    target_rate: float
    measured_rate: float
    measured_gpus: int
    utilization: float
    gpus_exact: float
    gpus: int


def gpus_required(
    target_rate: float, measured_rate: float, measured_gpus: int, utilization: float
) -> GpuNeed:
    """Required = target / (measured x utilization) x GPUs it was measured on."""
    real("target", target_rate, most=1e12)
    real("measured", measured_rate, most=1e12)
    whole("measured_gpus", measured_gpus, most=10**6)
    real("utilization", utilization, most=1.0)
    exact = target_rate / (measured_rate * utilization) * measured_gpus
    # A float's last digit must not buy a GPU: 10 / (5 x 0.8) x 8 is 20, not 21.
    return GpuNeed(
        target_rate,
        measured_rate,
        measured_gpus,
        utilization,
        gpus_exact=exact,
        gpus=math.ceil(round(exact, 6)) if exact > 1e-6 else 1,
    )


_GIB: Final = 1 << 30
_TB: Final = 10**12


@dataclass(frozen=True, slots=True)
class PoolParts:
    """A server's DRAM and drives for its pool; the default prices are meant to be replaced."""

    dram_bytes: int = 1 << 40
    nvme_bytes: int = 30_720 * 10**9  # four drives of 7.68 TB
    dram_gib_price: float = 10.0  # in dollars per GiB
    nvme_tb_price: float = 200.0  # in dollars per TB

    def __post_init__(self) -> None:
        whole("pool_dram", self.dram_bytes, least=0, most=1 << 60)
        whole("pool_nvme", self.nvme_bytes, least=0, most=1 << 60)
        real("dram_gib_price", self.dram_gib_price, most=1e6, zero=True)
        real("nvme_tb_price", self.nvme_tb_price, most=1e6, zero=True)

    @property
    def price(self) -> float:
        """The price of DRAM and drives, in dollars."""
        dram = self.dram_bytes / _GIB * self.dram_gib_price
        return dram + self.nvme_bytes / _TB * self.nvme_tb_price


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """One server of a GPU fleet; the defaults are an 8-GPU machine of the HGX class."""

    server_gpus: int = 8
    rack_units: int = 7
    power_kw_min: float = 10.0
    power_kw_max: float = 12.0
    price: float = 500_000.0  # in dollars
    pool_price: float | None = None  # in dollars, if known; None: that of its parts
    pool: PoolParts = field(default_factory=PoolParts)
    cooling_ratio: float = 0.3  # kW of cooling per kW of load

    def __post_init__(self) -> None:
        whole("server_gpus", self.server_gpus, most=10**4)
        whole("rack_units", self.rack_units, most=10**4)
        real("power_kw_min", self.power_kw_min, most=1e6)
        real("power_kw_max", self.power_kw_max, most=1e6)
        real("price", self.price, most=1e12, zero=True)
        if self.pool_price is not None:
            real("pool_price", self.pool_price, most=1e12, zero=True)
        real("cooling_ratio", self.cooling_ratio, most=10.0, zero=True)
        if self.power_kw_min > self.power_kw_max:
            raise SettingsError("power_kw_min is above power_kw_max; swap them.")

    @property
    def pool_dollars(self) -> float:
        """The price of a server's pool, in dollars."""
        return self.pool.price if self.pool_price is None else self.pool_price


@dataclass(frozen=True, slots=True)
class Fleet:
    """Servers that carry a load."""

    clients_per_server: int  # within the SLA
    servers: int
    gpus: int
    rack_units: int
    power_kw_min: float
    power_kw_max: float
    cooling_kw_min: float
    cooling_kw_max: float
    price: float  # pools included
    pool_price: float  # of all pools


@dataclass(frozen=True, slots=True)
class Cost:
    """The same load on servers without a pool and with one."""

    clients: int
    without: Fleet
    pooled: Fleet


@dataclass(frozen=True, slots=True)
class FleetLoad:
    """The load to carry: clients, the servers it runs on without a pool, or both."""

    clients: int | None = None
    baseline_servers: int | None = None  # that it takes without a pool, if known

    def __post_init__(self) -> None:
        if self.clients is None and self.baseline_servers is None:
            raise SettingsError("clients is missing; give --clients or --baseline-servers.")
        if self.clients is not None:
            whole("clients", self.clients, most=10**9)
        if self.baseline_servers is not None:
            whole("baseline_servers", self.baseline_servers, most=10**9)


def cost(load: FleetLoad, clients_without: int, clients_pooled: int, server: ServerSpec) -> Cost:
    """Servers = ceil(target clients / clients within the SLA); all other figures follow."""
    whole("clients_without", clients_without, most=10**9)
    whole("clients_with", clients_pooled, most=10**9)
    baseline = load.baseline_servers
    clients = load.clients
    if clients is None:
        assert baseline is not None
        clients = baseline * clients_without
    if baseline is None:
        baseline = -(-clients // clients_without)
    pooled = -(-clients // clients_pooled)
    return Cost(
        clients=clients,
        without=_fleet(clients_without, baseline, server, 0.0),
        pooled=_fleet(clients_pooled, pooled, server, server.pool_dollars),
    )


def _fleet(clients_per_server: int, servers: int, server: ServerSpec, pool: float) -> Fleet:
    return Fleet(
        clients_per_server=clients_per_server,
        servers=servers,
        gpus=servers * server.server_gpus,
        rack_units=servers * server.rack_units,
        power_kw_min=servers * server.power_kw_min,
        power_kw_max=servers * server.power_kw_max,
        cooling_kw_min=servers * server.power_kw_min * server.cooling_ratio,
        cooling_kw_max=servers * server.power_kw_max * server.cooling_ratio,
        price=servers * (server.price + pool),
        pool_price=servers * pool,
    )
