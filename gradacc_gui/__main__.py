"""`python -m gradacc_gui` is `gradacc`."""

import sys

from gradacc_gui.cli import main

sys.exit(main())
