"""Options of the text. Imports nothing heavy."""

import codecs
from dataclasses import dataclass

from base.errors import InputError
from base.options import check, option

CORPORA = ("stdlib", "shakespeare", "enwik8", "text8")


@dataclass
class DataConfig:
    """Source, tokenizer and split of the text, and the batch size."""

    corpus: str = option(
        "stdlib", "built-in corpus, used when data.path is not given", choices=CORPORA, on_resume="free"
    )
    path: str | None = option(
        None,
        "your own text: file, directory or glob, here or at s3://, https://; or [a,b]",
        on_resume="free",
        literal=True,
    )
    encoding: str = option("utf-8", "encoding of the text files")
    tokenizer: str = option(
        "char", "what a token is: a character, or a byte of the file", choices=("char", "byte"), on_resume="fixed"
    )
    split: list[float] = option([0.9, 0.05, 0.05], "fractions for train, validation and test", least=0, most=1)
    overfit: int | None = option(
        None, "train, validate and test on the same first N tokens, to see them memorised", least=2
    )
    batch: int = option(8, "batch size: windows per optimizer step, over all devices", least=1, most=2**24)
    micro_batch: int | None = option(None, "windows per forward and backward on one device; null: all", least=1)
    cache_dir: str | None = option(
        None, "folder for encoded text and downloads; null: the user's cache", on_resume="free", literal=True
    )
    cache_gb: float = option(
        20.0, "disk space there for text from s3:// or https://, in 10^9 bytes", above=0, on_resume="free"
    )

    def __post_init__(self) -> None:
        check(self, "data")
        if len(self.split) != 3 or abs(sum(self.split) - 1) > 1e-6 or min(self.split[:2]) <= 0:
            raise InputError(
                f"data.split={self.split}: must be three fractions [train,validation,test] that add up to 1, "
                "the first two above 0"
            )
        try:
            codecs.lookup(self.encoding)
        except LookupError:
            raise InputError(
                f"data.encoding={self.encoding}: is no encoding Python knows, such as utf-8, utf-16, latin-1, cp1252"
            ) from None
        if self.tokenizer == "byte" and self.encoding != "utf-8":
            raise InputError(
                f"data.encoding={self.encoding}: has no meaning with data.tokenizer=byte, which reads bytes"
            )
        if self.micro_batch is not None and self.batch % self.micro_batch:
            raise InputError(f"data.micro_batch={self.micro_batch}: must divide data.batch={self.batch}")
