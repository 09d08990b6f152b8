import threading
from types import SimpleNamespace
from typing import Any

import pytest

from training.errors import hide_failed_writes


class Writer(threading.Thread):
    """Of TensorBoard, by its module."""

    __module__ = "tensorboard.summary.writer.event_file_writer"


@pytest.mark.parametrize(("thread", "kind", "seen"), [
    pytest.param(Writer(), OSError, 0, id="a failed write"), pytest.param(Writer(), ValueError, 1, id="a bug of it"),
    pytest.param(threading.Thread(), OSError, 1, id="another thread"),
])  # fmt: skip
def test_only_failed_writes_of_tensorboard_are_hidden(
    monkeypatch: pytest.MonkeyPatch, thread: threading.Thread, kind: type[Exception], seen: int
) -> None:
    shown: list[Any] = []
    monkeypatch.setattr(threading, "__excepthook__", shown.append)
    hide_failed_writes(SimpleNamespace(thread=thread, exc_type=kind))  # type: ignore[arg-type]
    assert len(shown) == seen
