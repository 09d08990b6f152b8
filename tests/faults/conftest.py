"""The whole folder starts processes and kills them: it is left out by `make quick`. Runs that were left alone, once."""

import http.server
import threading
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest

from tests.faults.processes import LONG, TWO, run
from tests.faults.programs import PROGRAMS, Cost, Nursery, write_texts
from tests.model_files import filled, write_model_file


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory, prose: str) -> Any:
    made: dict[tuple[str, ...], Path] = {}

    def make(recipe: list[str]) -> Path:
        key = tuple(recipe)
        if key not in made:
            place = tmp_path_factory.mktemp("whole")
            (place / "book.txt").write_text(prose, encoding="utf-8")
            with chdir(place):
                assert run("name=cut", *recipe).status == 0
            made[key] = place / "runs/cut"
        return made[key]

    return make


@pytest.fixture(scope="session")
def whole_of_two(tmp_path_factory: pytest.TempPathFactory, prose: str) -> Path:
    place = tmp_path_factory.mktemp("two")
    (place / "book.txt").write_text(prose, encoding="utf-8")
    with chdir(place):
        ended = run("name=whole", *TWO, *LONG, long=True, environment={"XDG_CACHE_HOME": str(place / "cache")})
    assert ended.status == 0, ended
    return place / "runs/whole"


@pytest.fixture(scope="session")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    nursery = Nursery(tmp_path_factory.mktemp("nursery"))
    yield nursery
    nursery.close()


@pytest.fixture(scope="session")
def honest(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Cost]:
    with chdir(tmp_path_factory.mktemp("honest")):
        write_texts()
        write_model_file("honest.safetensors", filled())
        costs = {program: nursery(program, "honest.safetensors") for program in PROGRAMS}
    assert all(ended.status == 0 for ended in costs.values()), costs
    return costs


@pytest.fixture
def texts(workplace: Path) -> None:
    write_texts()


@pytest.fixture
def listener() -> Iterator[tuple[str, list[str]]]:
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

        do_HEAD = do_GET

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    server.server_close()
    thread.join()
