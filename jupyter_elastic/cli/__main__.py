"""Runs `python -m jupyter_elastic.cli`, the same as `jupyter elastic`."""

import sys

from jupyter_elastic.cli.main import main

sys.exit(main())
