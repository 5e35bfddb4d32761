"""`python -m gradcomp` is the command `gradcomp`."""

import sys

from gradcomp.cli import main

sys.exit(main())
