import os
import subprocess
import sys

from base import processes
from tests.conftest import ROOT


def test_threads_sleep_soon_unless_the_user_has_chosen() -> None:
    """In the environment of torch's OpenMP, which a child process inherits."""
    code = "import os; from base import processes; processes.limit_spinning(); print(os.environ.get('GOMP_SPINCOUNT'))"
    plain = {key: value for key, value in os.environ.items() if key not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    for given, expected in (
        ({}, str(processes.SPINS)), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "None")
    ):  # fmt: skip
        found = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, env=plain | given, check=True, capture_output=True, text=True
        )
        assert found.stdout.strip() == (expected if sys.platform == "linux" else given.get("GOMP_SPINCOUNT", "None"))
