"""Stores on this machine that text can be read from: a folder, and one that speaks S3."""

import logging
import random


class Server(logging.Handler):
    """A server of buckets on the loopback interface, which hears what it is asked for."""

    def __init__(self):
        from moto.server import ThreadedMotoServer

        super().__init__()
        self.requests = []
        log = logging.getLogger("werkzeug")
        log.setLevel(logging.INFO)
        log.addHandler(self)
        self.threads = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        self.threads.start()
        host, port = self.threads.get_host_and_port()
        self.url = f"http://{host}:{port}"

    def emit(self, record):
        self.requests.append(record.getMessage())

    def read(self, name):
        """How many times a file was sent, or a part of it, which s3fs asks for of one above 50 MB."""
        return sum('"GET ' in line and f"/{name} HTTP" in line for line in self.requests)


def make(folder, documents):
    """Write files into a folder, which they and theirs need not have."""
    for name, content in documents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


class Bucket:
    """An empty bucket of the server that the variables of AWS in the environment name."""

    def __init__(self, server, name):
        import boto3

        self.server, self.name, self.address = server, name, f"s3://{name}"
        self.client = boto3.client("s3")
        self.client.create_bucket(Bucket=name)

    def put(self, documents):
        for name, content in documents.items():
            self.client.put_object(Bucket=self.name, Key=name, Body=content)


def differing(documents):
    """Texts of different lengths and characters, by name."""
    rng = random.Random(0)
    return {
        f"{number:02}.txt": "".join(rng.choices("abcdefgh é\n", k=2000 + number))
        for number in range(documents)
    }
