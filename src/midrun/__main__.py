"""`python -m midrun`: the command."""

import sys

from midrun.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
