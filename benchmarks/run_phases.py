"""How the time of a run divides into phases.

    python benchmarks/run_phases.py [--rounds 3] [--other CHECKOUT] [OVERRIDE ...]

Runs `python train.py seed=ROUND OVERRIDE ...` and prints a table with the seconds of each phase, median and range over
the rounds. With `--other`, a checkout of another version runs in turn with this one. Nothing else should run meanwhile.
A callback measures the phases. Lightning finds it by the entry point of a package that is written for the run.
"""

import json
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from measuring import QUICK, ROOT, in_turn, make_parser, print_table, run, spread

if TYPE_CHECKING:
    from lightning import Callback

SETUP, STEPS, VALIDATIONS = "set up, first step", "training steps", "validations, samples, pictures, checkpoints"
ENTRY_POINT = "[lightning.pytorch.callbacks_factory]\nphases = run_phases:make_callback"


def make_callback() -> "Callback":
    """Return a callback that writes phases.json: the time when training began, and the seconds of its phases."""
    import lightning as L

    class Phases(L.Callback):
        def on_fit_start(self, *_: object) -> None:
            self.begun = self.since = time.time()
            self.seconds, self.phase = dict.fromkeys((SETUP, STEPS, VALIDATIONS), 0.0), SETUP

        def begin(self, phase: str) -> None:
            now = time.time()
            self.seconds[self.phase] += now - self.since
            self.phase, self.since = phase, now

        def on_train_batch_start(self, *_: object) -> None:
            if self.phase == VALIDATIONS:
                self.begin(STEPS)

        def on_train_batch_end(self, *_: object) -> None:
            if self.phase == SETUP:
                self.begin(STEPS)

        def on_validation_start(self, *_: object) -> None:
            self.begin(VALIDATIONS)

        def on_train_end(self, *_: object) -> None:
            self.begin(STEPS)
            Path("phases.json").write_text(json.dumps({"begun": self.begun, "seconds": self.seconds}))

    return Phases()


def run_once(root: Path, overrides: list[str], seed: int) -> dict[str, float]:
    """Run train.py once, and return the seconds of each phase, the validation loss and the characters per second."""
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder, "phases-0.dist-info")
        package.mkdir()
        (package / "METADATA").write_text("Metadata-Version: 2.1\nName: phases\nVersion: 0\n")
        (package / "entry_points.txt").write_text(ENTRY_POINT)
        command, started = [root / "train.py", "name=run", f"seed={seed}", *overrides], time.time()
        whole, _ = run(command, folder, PYTHONPATH=f"{folder}:{ROOT / 'benchmarks'}")
        seen = json.loads(Path(folder, "phases.json").read_text())
        summary = json.loads(Path(folder, "runs/run/summary.json").read_text())
    seconds = {"start: load torch and Lightning, settle the run": seen["begun"] - started, **seen["seconds"]}
    seconds |= {"end: sample, report, exit": whole - sum(seconds.values()), "all": whole}
    seconds["all but training steps"] = whole - seconds[STEPS]
    return seconds | {"validation loss": summary["val_loss"], "characters/s": summary["characters_per_second"]}


def main() -> None:
    """Run the rounds and print the table."""
    parser = make_parser(__doc__, text="")
    parser.add_argument("--other", type=Path, help="checkout of another version, measured in turn with this one")
    options, overrides = parser.parse_known_args()
    overrides += QUICK if options.quick else []
    roots = {"this version": ROOT} | ({"the other": options.other.resolve()} if options.other else {})
    seen = in_turn(options.rounds, {name: partial(run_once, root, overrides) for name, root in roots.items()})
    forms, rows = {"validation loss": ".4f", "characters/s": ",.0f"}, []
    for phase in seen["this version"][0]:
        columns = ([each[phase] for each in rounds] for rounds in seen.values())
        rows.append([phase, *(spread(column, forms.get(phase, ".2f")) for column in columns)])
    print_table(["seconds", *seen], rows)


if __name__ == "__main__":
    main()
