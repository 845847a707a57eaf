"""`forebay` whose pool tells other hosts every second what it uses most, not every ten minutes."""

import sys

from forebay.cli.main import main
from forebay.pool.core.warming import use_counts

if __name__ == "__main__":
    setattr(use_counts, "PUBLISH_S", 1.0)  # noqa: B010 - a constant, else
    sys.exit(main())
