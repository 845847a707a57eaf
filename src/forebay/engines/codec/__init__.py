"""The exponent code (`forebay.record.exponents`): encoding and decoding, on a CPU and on a GPU."""
