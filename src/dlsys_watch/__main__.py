import sys

from dlsys_watch.command import main

if __name__ == "__main__":
    sys.exit(main())
