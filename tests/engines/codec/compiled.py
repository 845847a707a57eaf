"""Compile the kernels of the exponent code for compute capability 9.0, and print their names."""

from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from forebay.engines.codec import kernels
from forebay.record.exponents import escapes_max

PAGE = 65_536
WARPS = 8


def compiled(kernel: Any, lanes: int) -> Any:
    types = dict.fromkeys(kernel.arg_names[:2], "*i64") | dict.fromkeys(kernel.arg_names[2:], "i32")
    types |= {"LANES": "constexpr", "ROOM": "constexpr"}
    room = triton.next_power_of_2(escapes_max(PAGE))
    source = ASTSource(kernel, types, {"LANES": lanes, "ROOM": room})
    target = GPUTarget("cuda", 90, 32)
    return triton.compile(source, target=target, options={"num_warps": WARPS})


if __name__ == "__main__":
    for kernel in (kernels._encode_pages, kernels._decode_pages):
        for lanes in (kernels._LANES, 4):  # of large pages, and of small ones
            assert "cubin" in compiled(kernel, lanes).asm
        print(kernel.fn.__name__)
