"""Stores on this machine that text can be read from: a folder, one that speaks S3, one that speaks HTTP."""

import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path


class Server:
    """A server in a process of its own, on the loopback interface; PORT in its command stands for a free port."""

    def __init__(self, *command: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as found:
            self.port = found.getsockname()[1]
        self.command = [sys.executable, *(part.replace("PORT", str(self.port)) for part in command)]
        self.log = Path(tempfile.mkstemp(suffix=".log")[1])
        self.start()

    def start(self) -> None:
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log, start_new_session=True)
        until = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                assert time.monotonic() < until and self.process.poll() is None, self.log.read_text()
                time.sleep(0.02)

    def stop(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def read(self, name: str) -> int:
        """How many times a file was sent, or a part of it, which s3fs asks for of one above 50 MB."""
        return len(re.findall(rf'"GET [^"]*/{re.escape(name)} HTTP', self.log.read_text()))


class Store:
    def put_all(self, documents: Iterable[tuple[str, str | bytes]]) -> None:
        for name, content in documents:
            self.put(name, content)


class Folder(Store):
    def __init__(self, path: Path, documents: dict[str, str] | None = None) -> None:
        self.path, self.address = path, f"file://{path}"
        self.put_all((documents or {}).items())

    def put(self, name: str, content: str | bytes) -> None:
        (self.path / name).parent.mkdir(parents=True, exist_ok=True)
        (self.path / name).write_bytes(content.encode() if isinstance(content, str) else content)

    def delete(self, name: str) -> None:
        (self.path / name).unlink()


class Bucket(Store):
    def __init__(self, server: Server, name: str) -> None:
        import boto3

        self.server, self.name, self.address = server, name, f"s3://{name}"
        self.url = f"http://127.0.0.1:{server.port}"
        keys = {"aws_access_key_id": "key", "aws_secret_access_key": "secret"}
        self.client = boto3.client("s3", "us-east-1", endpoint_url=self.url, **keys)
        self.client.create_bucket(Bucket=name)

    def put(self, name: str, content: str | bytes) -> None:
        body = content.encode() if isinstance(content, str) else content
        self.client.put_object(Bucket=self.name, Key=name, Body=body)

    def delete(self, name: str) -> None:
        self.client.delete_object(Bucket=self.name, Key=name)

    def environment(self) -> dict[str, str]:
        keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}
        return {"AWS_ENDPOINT_URL": self.url, **keys}

    def close(self) -> None:
        self.client.close()


def s3() -> Server:
    return Server("-m", "moto.server", "-H", "127.0.0.1", "-p", "PORT")


def web(folder: Path) -> Server:
    return Server("-m", "http.server", "PORT", "--bind", "127.0.0.1", "--directory", str(folder))


def differing(documents: int) -> dict[str, str]:
    rng, made = random.Random(0), {}
    for number in range(documents):
        words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyzé", k=rng.randint(2, 9))) for _ in range(50)]
        made[f"{number:02}.txt"] = " ".join(rng.choices(words, k=rng.randint(160, 1500)))
    return made
