"""`python -m qat_tft`: the command line, as launchers of several processes start it."""

import sys

from qat_tft.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
