import subprocess
from pathlib import Path

import pytest

from training import summary_file


def test_the_commit_of_the_code_is_known_where_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*arguments: str) -> str:
        who = ["-c", "user.name=n", "-c", "user.email=e"]
        return subprocess.run(["git", *who, *arguments], cwd=tmp_path, capture_output=True, text=True).stdout.strip()

    monkeypatch.setattr(summary_file, "CODE", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert summary_file.commit() is None
    (tmp_path / "a.py").write_text("1")
    git("init"), git("add", "a.py"), git("commit", "-m", "one")
    assert summary_file.commit() == git("rev-parse", "HEAD") and len(git("rev-parse", "HEAD")) == 40
    (tmp_path / "a.py").write_text("2")
    assert summary_file.commit() == git("rev-parse", "HEAD") + "-dirty"
