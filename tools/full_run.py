"""Record a full run of `Your model`: `python -m tools.full_run`; about three minutes.

The notebook draws its own curve over this one. Made from the stand-ins, so that no answer counts.
"""

import json
import resource
import time

import torch

from dlsys_helpers.paths import ROOT
from dlsys_model import text as texts
from dlsys_model.network import Network, Shape, write
from dlsys_model.parts import Parts
from dlsys_model.training import Plan, Training

RECORD = ROOT / "src/dlsys_model/full_run.json"
PROMPT = "The gradient of the loss "


def main() -> None:
    """Train for a thousand steps on one thread, and keep the log and a sample."""
    torch.set_num_threads(1)
    parts, text = Parts(), texts.prose()
    torch.manual_seed(0)
    model, began = Network(Shape(len(text.letters)), parts), time.process_time()
    run = Training(model, text, Plan(steps=1000, every=25))
    for entry in run.run():
        print(entry, flush=True)
    spent = time.process_time() - began
    letters = write(model, text.encode(PROMPT), 400,
                    generator=torch.Generator().manual_seed(0))
    record = {"plan": {"steps": run.plan.steps, "rows": run.plan.rows}, "torch": torch.__version__,
              "cpu_seconds": round(spent),
              "most_memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
              "log": [{key: round(value, 4) for key, value in row.items()} for row in run.log()],
              "sample": PROMPT + text.decode(torch.tensor(list(letters)))}
    RECORD.write_text(json.dumps(record, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
