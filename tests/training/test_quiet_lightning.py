import threading
from types import SimpleNamespace
from typing import Any

import pytest

from training.quiet_lightning import hide_failed_writes


def test_only_failed_writes_of_tensorboard_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Any] = []
    monkeypatch.setattr(threading, "__excepthook__", shown.append)
    writer = type(
        "Writer",
        (threading.Thread,),
        {"__module__": "tensorboard.summary.writer.event_file_writer"},
    )()
    for thread, kind, seen in (
        (writer, OSError, 0),
        (writer, ValueError, 1),
        (threading.Thread(), OSError, 2),
    ):
        hide_failed_writes(SimpleNamespace(thread=thread, exc_type=kind))  # type: ignore[arg-type]
        assert len(shown) == seen
