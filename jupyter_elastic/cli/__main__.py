"""`python -m jupyter_elastic.cli`, as `jupyter elastic`."""

import sys

from jupyter_elastic.cli.main import main

sys.exit(main())
