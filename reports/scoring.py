"""Load models and a text for score.py, and score the text as a whole or character by character."""

import argparse
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from io import BytesIO
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from base.command_line import about_unknown
from base.errors import InputError, printable
from base.progress import Progress
from gpt.device import to_device
from reports.run_text import split_of_run

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from data.tokenizer import Tokenizer
    from gpt.analysis import Costs
    from gpt.evaluation import Score
    from gpt.model import GPT

NUM_TOP = 5  # top-k characters at each position
PIECE = 4096  # characters that are printed at a time
MAX_PAGE = 10_000_000  # characters in an HTML page
BATCH = 2**11  # tokens per batch: enough to keep two cores busy, few enough for their caches
MAX_LOGITS = 2**25  # values in the logits of a batch, for large vocabularies


class Candidate(NamedTuple):
    """A model to score, and the text encoded for this model."""

    file: Path
    step: int
    model: "GPT"  # on the chosen device
    tokenizer: "Tokenizer"
    tokens: "np.ndarray"  # (N,) uint8 or uint16, the whole text
    stride: int  # tokens from one strided window to the next

    @property
    def name(self) -> str:
        """Return the file and the step for the terminal."""
        return f"{printable(self.file)}, step {self.step}"

    @property
    def page_name(self) -> str:
        """Return the name for a page, which may be sent to others: without the path of the file or the run."""
        run = f"{self.file.parent.parent.name}/" if self.file.parent.name == "checkpoints" else ""
        return f"{printable(run + self.file.name)}, step {self.step}"


class Piece(NamedTuple):
    """Consecutive characters of the text, the position of the first one, and the costs for each model."""

    position: int
    text: str
    costs: "list[Costs]"


def display_name(options: argparse.Namespace, path: bool = True) -> str:
    """Return the name of the text for messages, or for a page without its path."""
    name, file = (name and printable(name if path else Path(name).name) for name in (options.checkpoint, options.file))
    if options.split:
        return f"{options.split} split of {name}"
    return "standard input" if options.file == "-" else file


def open_source(checkpoints: list[Path], options: argparse.Namespace) -> tuple[AbstractContextManager[IO[bytes]], int]:
    """Return the text as an open file, and the size in bytes; the size of standard input is unknown and given as 0."""
    from data.corpus import Document

    if options.split:
        split = split_of_run(checkpoints[0], options.split)
        return BytesIO(split), len(split)
    if options.file == "-":
        return nullcontext(sys.stdin.buffer), 0
    return Document(display_name(options), Path(options.file)).open(), Path(options.file).stat().st_size


def read(checkpoints: list[Path], options: argparse.Namespace) -> list[Candidate]:
    """Load the models and encode the text for each; raise an `InputError` if a model or the text cannot be used."""
    with Progress("loading the model"):
        import numpy as np

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
    source, size = open_source(checkpoints, options)
    with source as file, Progress("reading", size, "B") as progress:
        texts, unknown = encode_text(file, tokenizers, options, progress)
    if not texts[0]:
        raise InputError(f"{display_name(options)}: is empty; there is no character to predict")
    if unknown:
        done = {"skip": "skipped", "replace": "replaced by the nearest or skipped"}[options.unknown]
        print(f"{unknown:,} characters outside the vocabulary: {done}", file=sys.stderr)
    if options.html is not None and len(texts[0]) > MAX_PAGE * np.dtype(tokenizers[0].dtype).itemsize:
        raise InputError(f"--html: {display_name(options)} has more characters than a page can show, {MAX_PAGE:,}")
    candidates = []
    for path, (model, meta), tokenizer, text in zip(checkpoints, loaded, tokenizers, texts, strict=True):
        tokens = np.frombuffer(text, tokenizer.dtype)
        if options.context:
            # Limit the context to the text: padding a longer window would cost time.
            context = min(options.context, max(1, len(tokens) - 1))
            try:
                model = with_context(model, context).eval()
            except ValueError as error:
                raise InputError(f"--context {context}: {error}") from None
        stride = min(options.stride or max(1, model.config.context // 2), model.config.context)
        candidates.append(Candidate(path, meta["step"], model, tokenizer, tokens, stride))
    return candidates


def encode_text(
    file: IO[bytes], tokenizers: "list[Tokenizer]", options: argparse.Namespace, progress: Any
) -> tuple[list[bytearray], int]:
    """Encode a text for each tokenizer, piece by piece, so that only the tokens are in memory.

    As in training, a byte-order mark is dropped and line ends become LF. If all models are byte models, the bytes stay
    unchanged. A character that one tokenizer lacks is skipped or replaced for all tokenizers, so that all models score
    the same text; see `--unknown`. Return the tokens, and the number of characters that were skipped or replaced.
    """
    from data.corpus import CHUNK, decode
    from data.tokenizer import ByteTokenizer, CharTokenizer, UnknownCharacter

    texts = [bytearray() for _ in tokenizers]
    if all(isinstance(tokenizer, ByteTokenizer) for tokenizer in tokenizers):
        if options.encoding != "utf-8":
            raise InputError(f"--encoding {options.encoding}: is not for a byte model, which reads bytes")
        while chunk := file.read(CHUNK):
            progress.update(len(chunk))
            for text in texts:
                text += chunk
        return texts, 0
    position, line, unknown = 0, 1, 0
    for piece in decode(file, display_name(options), options.encoding, progress.update, "--encoding "):
        if options.unknown != "error":
            known = set(piece).intersection(*(t.characters for t in tokenizers if isinstance(t, CharTokenizer)))
            unknown += sum(piece.count(character) for character in set(piece) - known)
            for replace in [True, False] if options.unknown == "replace" else [False]:
                for tokenizer in tokenizers:
                    piece = tokenizer.adapt(piece, replace=replace)
        for text, tokenizer in zip(texts, tokenizers, strict=True):
            try:
                text += tokenizer.pack(piece).tobytes()
            except UnknownCharacter as error:
                line += piece.count("\n", 0, error.position)
                in_text = UnknownCharacter(error.character, position + error.position, error.nearest)
                raise InputError(f"{display_name(options)}, line {line}: {in_text}; {about_unknown()}") from None
        position, line = position + len(piece), line + piece.count("\n")
    return texts, unknown


def describe(candidate: Candidate, mode: str, page: bool = False) -> str:
    """Describe a mode with context and stride, such as `strided windows of 256, stride 128`; a page explains it."""
    context, stride = candidate.model.config.context, candidate.stride
    words = {"strided": f", stride {stride}", "sample": ", as sample.py reads"}.get(mode, "")
    why = {
        "strided": f"; the model reads at least {context - stride} {candidate.tokenizer.unit}s before each",
        "disjoint": "; the model begins each window anew",
    }
    return f"{mode} windows of {context}{words}{why.get(mode, '') if page else ''}"


def predicted(candidate: Candidate, mode: str) -> "Iterator[tuple[Tensor, Tensor]]":
    """Yield logits (N, V) and targets (N,) of every token but the first, in order, with a progress display."""
    from data.batches import evaluation_windows
    from gpt.evaluation import predictions

    context, tokens = candidate.model.config.context, candidate.tokens
    total = len(tokens) - 1
    batch = min(BATCH, MAX_LOGITS // candidate.model.vocabulary)
    if mode == "sample":
        batches = predicted_by_decoder(candidate, batch)
    else:
        rows, context = max(1, batch // context), max(1, min(context, total))  # no padding for a short text
        stride = min(candidate.stride, context) if mode == "strided" else context
        rows = max(1, min(rows, -(-total // stride)))
        batches = predictions(candidate.model, evaluation_windows(tokens, context, rows, stride=stride))
    with Progress(f"scoring, {mode} windows", total) as progress:
        for logits, targets in batches:
            yield logits, targets
            progress.update(len(targets))


def predicted_by_decoder(candidate: Candidate, batch: int) -> "Iterator[tuple[Tensor, Tensor]]":
    """Yield logits (N, V) and targets (N,) for `--window sample`: with the decoder and context of sample.py."""
    import numpy as np
    import torch

    from gpt.inference.decoder import Decoder
    from gpt.inference.weights import weights_of

    decoder = Decoder(weights_of(candidate.model))
    for start in range(0, len(candidate.tokens) - 1, batch):
        tokens = torch.from_numpy(candidate.tokens[start : start + batch + 1].astype(np.int64))
        yield torch.from_numpy(decoder.read(tokens[None, :-1].numpy())[0]), tokens[1:]


def measure(candidate: Candidate, mode: str) -> "Score":
    """Score the text as a whole."""
    from gpt.evaluation import reduce

    first, sizes = int(candidate.tokens[0]), candidate.tokenizer.token_sizes
    return reduce(predicted(candidate, mode), first, candidate.model.vocabulary, sizes)


def pieces(candidates: list[Candidate], mode: str) -> Iterator[Piece]:
    """Yield the text in pieces of `PIECE` characters, with the costs for each model."""
    import torch

    from gpt.analysis import by_character, costs, letters

    streams = []
    for candidate in candidates:
        by_token = costs(predicted(candidate, mode), int(candidate.tokens[0]), candidate.model.vocabulary, NUM_TOP)
        streams.append(by_character(by_token, torch.from_numpy(candidate.tokenizer.token_sizes[:, 0]), PIECE))
    position = 0
    for group in zip(*streams, strict=True):
        text = letters(group[0], candidates[0].tokenizer.decode)
        yield Piece(position, text, list(group))
        position += len(text)
