import shlex
from pathlib import Path

import pytest

from base.log import to_console
from reports.tensorboard import watch


def test_the_command_to_watch_works_in_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    to_console()
    watch(Path("my $runs"))
    command, page = capsys.readouterr().out.splitlines()
    assert shlex.split(command)[-2:] == ["--logdir", str(tmp_path / "my $runs")]
    assert page.split()[0] == "http://localhost:6006/#custom_scalars&_smoothingWeight=0"
