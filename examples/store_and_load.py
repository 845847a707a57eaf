"""Store the KV of a prompt and load it again: what an engine does, in forty lines.

    forebay pool --dram 1GiB &
    python examples/store_and_load.py

Without a pool it starts one, which ends ten minutes later by itself.
"""

import argparse
from array import array

from forebay.identity.keys import ChainRoot, KeyChain
from forebay.identity.namespace import fingerprint
from forebay.pool.client import Chain, Client, Loaded
from forebay.pool.service import join_or_start
from forebay.settings import Settings

CHUNK_TOKENS = 16


def kv_of(tokens: list[int]) -> bytes:
    """Stands for what a model computes: some bytes that depend on the tokens alone."""
    return array("I", tokens).tobytes() * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("socket", nargs="?", default="", help="of the pool; your own by default")
    socket = parser.parse_args().socket
    # Everything that shapes the bytes is in the namespace: another model or dtype never hits.
    namespace = fingerprint({"model": "example", "dtype": "uint32", "chunk": CHUNK_TOKENS})
    prompt = list(range(100, 100 + 8 * CHUNK_TOKENS))
    keys = KeyChain(ChainRoot(namespace, CHUNK_TOKENS)).extend(prompt)
    chain = Chain(namespace, keys)
    chunks = [prompt[at : at + CHUNK_TOKENS] for at in range(0, len(prompt), CHUNK_TOKENS)]

    with Client(join_or_start(Settings(dram=256 << 20, socket=socket))) as client:
        print("known before:", client.lookup(chain))
        print("stored:", client.store(chain, [kv_of(chunk) for chunk in chunks]))
        print("known after:", client.lookup(chain))
        with client.load(chain) as loaded:
            if isinstance(loaded, Loaded):
                exact = [bytes(view) for view in loaded.chunks] == [kv_of(c) for c in chunks]
                print(f"loaded {len(loaded.chunks)} chunks, equal: {exact}")
            else:
                print(f"a miss ({loaded.reason}): compute it")


if __name__ == "__main__":
    main()
