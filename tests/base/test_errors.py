import errno
import os

import pytest

from base.errors import describe_os_error


@pytest.mark.parametrize(
    ("number", "file", "said"),
    [
        (errno.EACCES, "runs/x/.lock", "runs/x: could not be written: Permission denied; work in a folder that"),
        (errno.ENOSPC, "a/.b.st.0123abcd.tmp/part", "a/b.st: could not be written: No space left on device; free"),
        (errno.ENOTDIR, "runs", "runs: Not a directory"),
        (errno.EROFS, None, "a file could not be written: Read-only file system; work"),
    ],
)
def test_what_is_said_of_an_error_of_a_file(number: int, file: str | None, said: str) -> None:
    assert describe_os_error(OSError(number, os.strerror(number), file)).startswith(said)
