"""Every limit of the server, with its unit."""

from dataclasses import dataclass

from forebay.pool.messages import FRAME_BYTES_MAX


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """The defaults suit a host full of engines; tests make them small."""

    connections_max: int = 256  # beyond this a newcomer displaces one, or is refused
    operators_max: int = 8  # extra connections, for operators' messages alone
    engines_max: int = 1024  # engines connected, or with slots and a living process
    names_max: int = 64  # names that one process may join under
    backlog: int = 64  # connections that wait in the kernel to be accepted
    output_bytes_max: int = 2 * FRAME_BYTES_MAX  # a client that leaves more unread is cut off
    messages_a_round_max: int = 64  # of one process, handled in its turn; or waiting
    input_bytes_max: int = 8 * FRAME_BYTES_MAX  # of one process; beyond it large frames are refused
    frame_s: float = 10.0  # a connection with a frame incomplete for longer is closed
    hello_s: float = 5.0  # a connection that has not said Hello by then is closed
    tick_s: float = 0.01  # how often deadlines are looked at while something is under way
    busy_tick_s: float = 0.05  # likewise while engines have sent something within `busy_s`
    busy_s: float = 1.0
    idle_tick_s: float = 0.25  # likewise while nobody does anything
    grace_s: float = 1.0  # from the last process's exit until its slots are free
    hidden_s: float = 10.0  # from the last connection's end, where the process cannot be seen
    accept_pause_s: float = 0.1  # pause after even the spare descriptor is used
