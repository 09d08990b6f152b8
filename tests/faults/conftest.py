"""The folder starts processes and kills them; `make test` runs only its promises. Here: runs left alone, once."""

import signal
from contextlib import chdir
from pathlib import Path

import pytest

from tests.faults.processes import LONG, TWO, run


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def whole(tmp_path_factory, prose):
    """Makes the run runs/cut of a recipe, once, and returns its directory; `fault` kills it."""
    made = {}

    def make(recipe, fault=(), **options):
        key = (*recipe, *fault)
        if key not in made:
            place = tmp_path_factory.mktemp("whole")
            (place / "book.txt").write_text(prose, encoding="utf-8")
            with chdir(place):
                cache = {"XDG_CACHE_HOME": str(place / "cache")}
                ended = run("name=cut", *recipe, fault=fault, environment=cache, **options)
            assert ended.status == (-signal.SIGKILL if fault else 0), ended
            made[key] = place / "runs/cut"
        return made[key]

    return make


@pytest.fixture(scope="session")
def whole_of_two(whole):
    return whole([*TWO, *LONG], long=True)
