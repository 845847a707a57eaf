"""A child of a remote tier on a host whose clock is wrong by SKEW_S seconds."""

import os
import sys
import time
from unittest.mock import patch

from forebay.tiers.remote.process import child

SKEW = "SKEW_S"  # in the environment

if __name__ == "__main__":
    right, skew_s = time.time, float(os.environ[SKEW])
    with patch("time.time", lambda: right() + skew_s):
        child.main(sys.argv[1:])
    os._exit(0)
