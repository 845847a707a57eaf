"""`python -m forebay.cli`: the `forebay` command where it is not on the path."""

import sys

from forebay.cli.main import main

sys.exit(main())
