"""Writes what `make train` prints in a fresh clone to docs/first_run.txt: `python docs/first_run.py`.

README.md shows the end of it, and a test compares the two. docs/pictures.py shows the run, kept as runs/first.
"""

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PRINTED, KEPT = ROOT / "docs/first_run.txt", ROOT / "runs/first"


def main() -> None:
    """Clone the last commit, install it, and train the first run with an empty cache."""
    if KEPT.exists():
        raise SystemExit("runs/first exists: move it away")
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "chargpt"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        subprocess.run(["make", ".venv/.installed"], cwd=clone, check=True)
        begun = time.perf_counter()
        trained = subprocess.run(
            ["make", "train"],
            cwd=clone,
            env=os.environ | {"XDG_CACHE_HOME": f"{folder}/cache"},
            check=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        seconds = time.perf_counter() - begun
        shutil.copytree(clone / "runs/first", KEPT)
    text = trained.stdout.replace(f"{clone}/", "")
    PRINTED.write_text(f"$ make train\n{text}", encoding="utf-8")
    print(f"without installing, make train took {seconds:.0f} s: {PRINTED.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
