"""`python -m dlsys`, if the command `dlsys` is not on the path, or is a different program."""

import sys

from dlsys.cli import main

if __name__ == "__main__":
    sys.exit(main())
