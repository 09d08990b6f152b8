"""What Python takes for a step that a GPU repeats: `python benchmarks/host_time.py TEXT`. It needs no GPU.

train.py at the `baby` batch, 64 windows of 256, with a step that is recorded and does nothing: what is left is
Lightning's loop, batches (gathered here, as on a CPU), learning rates, counting and logging. Processor time, the median
step of 2,000, in rounds. What the calls into CUDA take is not in it. A GPU whose steps take longer never waits for
Python, for nothing is read between logs.
"""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
os.environ["OMP_NUM_THREADS"] = "1"

from benchmarks.train_speed import spread  # noqa: E402

STEPS, FIRST, ROUNDS = 2000, 50, 3
RUN = (
    "data.split=[0.9,0.1,0.0] data.batch=64 model.context=256 model.layers=1 model.heads=1 model.dim=32 "
    f"compile=false trainer.accelerator=cpu trainer.max_steps={STEPS} trainer.val_check_interval={STEPS}"
).split()


def once(text: str, *arguments: str) -> float:
    """Milliseconds of a step."""
    import train
    from training import assemble
    from training.module import LitGPT

    begun: list[float] = []
    step = LitGPT.training_step

    def timed(self: LitGPT, *given: Any) -> Any:
        begun.append(time.process_time())
        return step(self, *given)

    def nothing(work: Callable[[], None]) -> Callable[[], None]:
        return lambda: None

    assemble.choose_capture = lambda *_: nothing
    LitGPT.training_step = timed  # type: ignore[method-assign]
    sys.argv = ["train.py", "name=run", f"data.path={text}", *RUN, *arguments]
    if train.cli():
        sys.exit("the run failed")
    return 1000 * statistics.median(
        later - earlier for earlier, later in zip(begun[FIRST:-1], begun[FIRST + 1 :], strict=True)
    )


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    text = str(Path(sys.argv[1]).absolute())
    from benchmarks.gpu import fresh

    for name, arguments in {"no logger": ["logger=none"], "TensorBoard": []}.items():
        seen = []
        for _ in range(ROUNDS):
            with tempfile.TemporaryDirectory() as folder:
                os.chdir(folder)
                seen.append(fresh(once, text, *arguments))
                os.chdir(ROOT)
        print(f"| {name} | {spread(seen, '.2f')} ms |", flush=True)
