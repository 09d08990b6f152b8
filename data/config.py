"""Define the `data.` options: text, encoding, tokenizer, documents, splits and batch size."""

import codecs
from dataclasses import dataclass
from typing import Any

from base.errors import InputError
from base.options import check, option

SPLIT = (0.9, 0.05, 0.05)
END = "\x03"  # U+0003 END OF TEXT: the end mark of documents that may contain any line breaks
# the end mark of each kind of document; any other value of data.documents is a separator
DOCUMENT_ENDS = {"line": "\n", "paragraph": "\n\n", "file": END}


@dataclass(frozen=True)
class DataConfig:
    """The options `data.*` of train.py: the text, its tokenizer and splits, and the batch size."""

    path: str | None = option(
        None, "the text: a file, directory, glob, address or list [a,b] of these; null: Python's standard library",
        on_resume="free", verbatim=True,
    )  # fmt: skip
    validation: str | None = option(
        None,
        "the validation text, given like data.path; null: a part of data.path",
        on_resume="free",
        verbatim=True,
    )
    test: str | None = option(
        None,
        "the test text, given like data.path; only works with data.validation",
        on_resume="free",
        verbatim=True,
    )
    documents: str | None = option(
        None,
        "what a document is: line, paragraph, file, or a separator such as <|endoftext|>",
        verbatim=True,
    )
    field: str | None = option(
        None, "field of tables and JSON; its text in a row is a document: text, messages.text, '{from}: {text}'",
        verbatim=True,
    )  # fmt: skip
    encoding: str = option("utf-8", "encoding of the text files")
    tokenizer: str = option(
        "char", "a token is a character or a byte", choices=("char", "byte"), on_resume="fixed"
    )
    split: list[float] = option(
        [*SPLIT],
        "fractions for training, validation and test; not used with data.validation",
        least=0,
        most=1,
    )
    overfit: int | None = option(
        None,
        "train, validate and test on the first N tokens, to check that the model can memorise",
        least=2,
    )
    val_tokens: int | None = option(
        None, "maximum tokens per validation and of the evaluation after training; "
        "null: 32768, or after training a quarter of the tokens trained on if that is more",
        least=2,
    )  # fmt: skip
    batch: Any = option(
        8,
        "batch size: windows per optimizer step, over all devices; auto: 8, or more",
        auto=int,
        least=1,
        most=2**24,
    )
    micro_batch: int | None = option(
        None, "windows per forward and backward pass on one device; null: all at once", least=1
    )
    cache_dir: str | None = option(
        None,
        "cache directory for encoded text and downloads; null: the user's cache",
        on_resume="free",
        verbatim=True,
    )

    def __post_init__(self) -> None:
        check(self, "data")
        if len(self.split) != 3 or abs(sum(self.split) - 1) > 1e-6 or min(self.split[:2]) <= 0:
            needed = (
                "three fractions [train,validation,test] that add up to 1, the first two above 0"
            )
            raise InputError(f"data.split={self.split}: must be {needed}")
        for key, needed in (("test", "validation"), ("validation", "path"), ("field", "path")):
            value = getattr(self, key)
            if value is not None and getattr(self, needed) is None:
                raise InputError(f"data.{key}={value}: needs data.{needed}=")
        try:
            codecs.lookup(self.encoding)
        except LookupError:
            known = "an encoding of Python, such as utf-8, utf-16, latin-1, cp1252"
            raise InputError(f"data.encoding={self.encoding}: must be {known}") from None
        for key in ("documents", "field"):
            if getattr(self, key) == "":
                raise InputError(f"data.{key}=: must not be empty")
        if self.field is not None and self.documents is not None:
            raise InputError(
                f"data.field={self.field}: each row is a document; leave data.documents out"
            )
        if self.tokenizer == "byte" and self.encoding != "utf-8":
            raise InputError(f"data.encoding={self.encoding}: only works with data.tokenizer=char")
        if self.micro_batch is not None and self.batch != "auto" and self.batch % self.micro_batch:
            raise InputError(
                f"data.micro_batch={self.micro_batch}: must divide data.batch={self.batch}"
            )

    def rows(self, devices: int) -> int:
        """Return how many sequences a forward pass on a device has; an `InputError` if they cannot be shared out."""
        # until `auto` is replaced: the default, which is the class attribute
        batch = DataConfig.batch if self.batch == "auto" else self.batch
        per_device = batch // devices
        micro_batch = self.micro_batch or per_device
        if batch % devices or per_device % micro_batch:
            parts = f"{devices} devices"
            if self.micro_batch:
                parts += f" x data.micro_batch={self.micro_batch}"
            raise InputError(f"data.batch={batch}: must be a multiple of {parts}")
        return micro_batch
