"""Read a text with one model or several: what each character costs them."""

import argparse
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from base.command_line import to_device
from base.errors import InputError, printable
from base.progress import Progress

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from data.tokenizer import Tokenizer
    from gpt.analysis import Costs
    from gpt.evaluation import Score
    from gpt.model import GPT

NUM_TOP = 5  # how many of the most likely characters are named
PIECE = 4096  # characters that are shown at a time
MAX_PAGE = 10_000_000  # characters
BATCH = 2**12  # tokens: enough to keep two cores busy, few enough for their caches
LOGITS = 2**25  # numbers that the logits of a batch may be, where the vocabulary is large


class Reader(NamedTuple):
    """A model and the text as it reads it.

    Attributes:
        name: of the checkpoint, for people.
        model: on its device.
        tokenizer: the model's.
        tokens: the whole text, uint8 or uint16.
        stride: from one strided window to the next.
    """

    name: str
    model: "GPT"
    tokenizer: "Tokenizer"
    tokens: "np.ndarray"
    stride: int


class Piece(NamedTuple):
    """Some characters of the text, what they cost each model, and how many came before them."""

    position: int
    text: str
    costs: "list[Costs]"


# -- The text --------------------------------------------------------------------------------------
def called(file: str) -> str:
    """What to call the text."""
    return "standard input" if file == "-" else printable(file)


def read(checkpoints: list[Path], options: argparse.Namespace) -> list[Reader]:
    """Load the models, and encode the text for each.

    Raises:
        InputError: a checkpoint, an option or the text cannot be used.
    """
    with Progress("loading the model"):
        import numpy as np

        from data.corpus import Document
        from data.tokenizer import tokenizer_from
        from gpt.checkpoint import load_checkpoint
        from gpt.transfer import with_context

        loaded = [load_checkpoint(path) for path in checkpoints]
    for model, _ in loaded:
        to_device(model, options.device)
        context = options.context or model.config.context
        if options.stride and options.stride > context:
            raise InputError(f"--stride {options.stride}: must be at most {context}, the context")
    tokenizers = [tokenizer_from(meta["vocabulary"]) for _, meta in loaded]
    document = Document(called(options.file), Path(options.file))
    size = 0 if options.file == "-" else document.path.stat().st_size
    with (
        nullcontext(sys.stdin.buffer) if options.file == "-" else document.open() as file,
        Progress("reading", size, "B") as progress,
    ):
        texts = encode(file, tokenizers, options, progress)
    if not texts[0]:
        raise InputError(f"{document.name}: is empty, there is no character to predict")
    if options.html is not None and len(texts[0]) > MAX_PAGE * np.dtype(tokenizers[0].dtype).itemsize:
        raise InputError(f"--html: {document.name} is longer than a page can show, {MAX_PAGE:,} characters")
    readers = []
    for path, (model, meta), tokenizer, text in zip(checkpoints, loaded, tokenizers, texts, strict=True):
        name = f"{printable(path)}, step {meta['step']}"
        tokens = np.frombuffer(text, tokenizer.dtype)
        if options.context:
            # Windows longer than the text would only be filled up, at the cost of their whole length.
            context = min(options.context, max(1, len(tokens) - 1))
            try:
                model = with_context(model, context).eval()
            except ValueError as error:
                raise InputError(f"--context {context}: {error}") from None
        stride = min(options.stride or max(1, model.config.context // 2), model.config.context)
        readers.append(Reader(name, model, tokenizer, tokens, stride))
    return readers


def encode(
    file: IO[bytes], tokenizers: "list[Tokenizer]", options: argparse.Namespace, progress: Any
) -> list[bytearray]:
    """Encode a text once for each tokenizer: a byte or two for each character is all that is kept.

    As in training, it is decoded, a mark at its start dropped and line ends made LF; where there are none but models
    of bytes, its bytes are taken as they are.

    Raises:
        InputError: it is not in the encoding, or a vocabulary does not have one of its characters.
    """
    from data.corpus import CHUNK, decode
    from data.tokenizer import ByteTokenizer, UnknownCharacter

    texts = [bytearray() for _ in tokenizers]
    if all(isinstance(tokenizer, ByteTokenizer) for tokenizer in tokenizers):
        if options.encoding != "utf-8":
            raise InputError(f"--encoding {options.encoding}: has no meaning for a model of bytes, which reads bytes")
        while chunk := file.read(CHUNK):
            progress.update(len(chunk))
            for text in texts:
                text += chunk
        return texts
    position, line = 0, 1
    for piece in decode(file, called(options.file), options.encoding, progress.update, "--encoding "):
        for text, tokenizer in zip(texts, tokenizers, strict=True):
            try:
                text += tokenizer.pack(piece).tobytes()
            except UnknownCharacter as error:
                line += piece.count("\n", 0, error.position)
                what = UnknownCharacter(error.character, position + error.position, error.nearest)
                raise InputError(f"{called(options.file)}, line {line}: {what}") from None
        position, line = position + len(piece), line + piece.count("\n")
    return texts


# -- Scores ----------------------------------------------------------------------------------------
def describe(reader: Reader, mode: str) -> str:
    """A mode in words, with what it depends on."""
    context = reader.model.config.context
    words = {"strided": f", stride {reader.stride}", "sample": ", as sample.py reads"}.get(mode, "")
    return f"{mode} windows of {context}{words}"


def predicted(reader: Reader, mode: str) -> "Iterator[tuple[Tensor, Tensor]]":
    """Logits and targets of every token but the first, in the order of the text; slow work shows how far it is."""
    from data.batches import evaluation_windows
    from gpt.evaluation import predictions

    context, tokens = reader.model.config.context, reader.tokens
    total = len(tokens) - 1
    batch = min(BATCH, LOGITS // reader.model.vocabulary)
    if mode == "sample":
        batches = decoded(reader, batch)
    else:
        rows, context = max(1, batch // context), max(1, min(context, total))  # nothing is computed beyond a short text
        stride = min(reader.stride, context) if mode == "strided" else context
        rows = max(1, min(rows, -(-total // stride)))
        batches = predictions(reader.model, evaluation_windows(tokens, context, rows, stride=stride))
    with Progress(f"scoring, {mode} windows", total) as progress:
        for logits, targets in batches:
            yield logits, targets
            progress.update(len(targets))


def decoded(reader: Reader, batch: int) -> "Iterator[tuple[Tensor, Tensor]]":
    """The same as sample.py sees it: the text is read once, by the window rule of `gpt.inference.decoder`."""
    import numpy as np
    import torch

    from gpt.inference.decoder import Decoder
    from gpt.inference.weights import weights_of

    decoder = Decoder(weights_of(reader.model))
    for start in range(0, len(reader.tokens) - 1, batch):
        tokens = torch.from_numpy(reader.tokens[start : start + batch + 1].astype(np.int64))
        yield torch.from_numpy(decoder.read(tokens[None, :-1].numpy())[0]), tokens[1:]


def measure(reader: Reader, mode: str) -> "Score":
    """The score alone."""
    from gpt.evaluation import reduce

    return reduce(predicted(reader, mode), int(reader.tokens[0]), reader.model.vocabulary, reader.tokenizer.token_sizes)


def pieces(readers: list[Reader], mode: str) -> Iterator[Piece]:
    """What the characters of the text cost each reader."""
    import torch

    from gpt.analysis import by_character, costs, letters

    streams = []
    for reader in readers:
        each = costs(predicted(reader, mode), int(reader.tokens[0]), reader.model.vocabulary, NUM_TOP)
        streams.append(by_character(each, torch.from_numpy(reader.tokenizer.token_sizes[:, 0]), PIECE))
    position = 0
    for group in zip(*streams, strict=True):
        text = letters(group[0], readers[0].tokenizer.decode)
        yield Piece(position, text, list(group))
        position += len(text)
