"""`train.py` with a fault in the ranks that FAULT names: `python driver.py ...` with FAULT="1:hang_at:12"."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import train  # noqa: E402
from gpt import job  # noqa: E402
from tests.faults import faults  # noqa: E402

if __name__ == "__main__":
    rank, name, *numbers = os.environ["FAULT"].split(":")
    if job.rank() == int(rank):
        getattr(faults, name)(*map(int, numbers))
    sys.exit(train.cli())
