"""`python -m qat_tft`: the command line, as launchers of several processes start it."""

import sys

from qat_tft.cli.app import main

sys.exit(main())
