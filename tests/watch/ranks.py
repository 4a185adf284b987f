"""Programs for two ranks with one fault each, all of them in the same two processes."""

import os
import sys
from pathlib import Path

RANKS = sorted((Path(__file__).parent / "ranks").glob("*.py"))


def work(rank: int, folder: str) -> None:
    """Run each program, broken and repaired; write what this rank found."""
    import json

    import torch
    import torch.distributed as dist
    from faults import given, lines_found, repaired, rule_of, watch

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank,
                            world_size=2)
    out = {}
    for path in RANKS:
        source = path.read_text("utf-8")
        for name, text in (("broken", source), ("repaired", repaired(source))):
            wanted = sorted(lines_found(text)) if name == "broken" else []
            found, failed = watch(text, path, names={**given(), "dist": dist})
            out[f"{path.stem} {name}"] = {"found": [(f.rule, f.line) for f in found],
                                          "failed": failed, "rule": rule_of(path).id,
                                          "lines": wanted}
            dist.barrier()
    Path(folder, f"{rank}.json").write_text(json.dumps(out), "utf-8")
    dist.destroy_process_group()


def start(folder: str) -> list:
    """Both ranks' answers, from their files. Where one rank dies, the other one is ended."""
    import json
    import subprocess
    import time

    running = [subprocess.Popen([sys.executable, "-W", "ignore", __file__, str(rank), folder],
                                env={**os.environ, "OMP_NUM_THREADS": "1"}) for rank in range(2)]
    until = time.monotonic() + 180
    try:
        while not all(process.poll() == 0 for process in running):
            codes = [process.returncode for process in running]
            assert not any(codes), f"exit codes of the ranks: {codes}"
            assert time.monotonic() < until, "the ranks take too long"
            time.sleep(0.05)
    finally:
        for process in running:
            process.kill()
            process.wait()
    return [json.loads(Path(folder, f"{rank}.json").read_text("utf-8")) for rank in range(2)]


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    work(int(sys.argv[1]), sys.argv[2])
