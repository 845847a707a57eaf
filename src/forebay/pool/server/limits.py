"""Every limit of the server, with its unit."""

from dataclasses import dataclass

from forebay.pool.messages import FRAME_BYTES_MAX


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """The defaults suit a host full of engines; tests make them small."""

    connections_max: int = 256  # then one gives way to a newcomer, or it is refused
    operators_max: int = 8  # connections beyond these, which act on an operator's messages alone
    engines_max: int = 1024  # that are connected, or have slots and a living process
    names_max: int = 64  # of one process, of these
    backlog: int = 64  # connections that the kernel keeps for us
    output_bytes_max: int = 2 * FRAME_BYTES_MAX  # a client that lets more wait is cut off
    messages_a_round_max: int = 64  # of one process, before others have their turn; or wait
    input_bytes_max: int = 8 * FRAME_BYTES_MAX  # of one process; large frames beyond are refused
    frame_s: float = 10.0  # a connection whose frame has not come whole by then is closed
    hello_s: float = 5.0  # a connection that has not said Hello by then is closed
    tick_s: float = 0.01  # how often deadlines are looked at while something is under way
    busy_tick_s: float = 0.05  # while engines have sent something within `busy_s`
    busy_s: float = 1.0
    idle_tick_s: float = 0.25  # and while nobody does anything
    grace_s: float = 1.0  # from the last process's exit until its slots are free
    hidden_s: float = 10.0  # from the last connection's end, where the process cannot be seen
    accept_pause_s: float = 0.1  # when descriptors have run out, even the one kept for that
