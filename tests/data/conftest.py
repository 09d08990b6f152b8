import pytest

from data.config import DataConfig
from data.text import open_text


@pytest.fixture
def opened(tmp_path, monkeypatch):
    """Open a text, with a cache of its own; names are relative to `tmp_path`."""

    def open_it(path="text", cache="cache", context=4, extra="", **settings):
        config = DataConfig(path=path and str(path), cache_dir=str(tmp_path / cache), **settings)
        return open_text(config, context, extra)

    monkeypatch.chdir(tmp_path)
    return open_it
