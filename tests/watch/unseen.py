"""What programs print without and with the watch: each runs twice, in forked processes.

    python tests/watch/unseen.py FOLDER    answers a JSON object: name -> [alone, beside]
"""

import json
import os
import sys
import tempfile
from pathlib import Path

import torch
import torch.optim.lr_scheduler
import torch.utils.data  # noqa: F401

from dlsys_watch import command, script


def printed(work) -> list:
    """Exit status, stdout and stderr of work() in a process of its own."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if not child:
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            code = 1
            try:
                work()
                code = 0
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return [status, *(told(stream) for stream in (out, err))]


def told(stream) -> str:
    stream.seek(0)
    return stream.read().decode()


def main() -> None:
    found = {}
    for path in sorted(Path(sys.argv[1]).glob("*.py")):
        file = str(path)
        watched = ["--silence", "broadcast-loss", file]
        found[path.stem] = [printed(lambda file=file: script.run(file, [])),
                            printed(lambda watched=watched: command.main(watched))]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
