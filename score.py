"""How surprised is a model? `python score.py MODEL FILE`: nats and bits per character, bits per byte, exactly."""

import argparse
import io
import json
import math
import os
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import accumulate
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, TextIO

from conf.commandline import Parser, answer, device, number, to_device, writing_to
from conf.fields import InputError, nearest, printable
from conf.progress import Progress, hidden
from gpt import runs

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from data.tokenizer import Tokenizer
    from gpt.evaluate import Score
    from gpt.model import GPT
    from gpt.surprisal import Costs

MODES = ("disjoint", "strided", "sample")
BOTH = MODES[:2]  # what is scored unless one is chosen
LIKELY = 5  # how many of the most likely characters are named
PIECE = 4096  # characters that are shown at a time
LONGEST_PAGE = 10_000_000  # characters
BATCH = 2**12  # tokens: enough to keep two cores busy, few enough for their caches
LOGITS = 2**25  # numbers that the logits of a batch may be, where the vocabulary is large
DIFFERENCES = 5  # lines that are named where two models differ
SHORTEST = 10  # characters that such a line has
SHOWN = 80  # characters of it that are shown


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


def cli(arguments: list[str] | None = None) -> int:
    """Run from the command line; what a person typed wrong is answered in one line with exit status 2."""
    options = parse(arguments)
    return answer("score.py", lambda: run(options), out_of_memory="the text or the model is too large for this machine")


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = Parser(prog="score.py", description="How well a trained model predicts a text.", allow_abbrev=False)
    add = parser.add_argument
    add("checkpoint", help="model file, run directory or name of a run")
    add("file", help="the text; - is standard input")
    add("--compare", metavar="OTHER", help="a second model or run, on the same text")
    add("--window", choices=MODES, help="score in this mode alone (default: disjoint and strided)")
    stride = number(int, 1, 2**20)
    add("--stride", type=stride, metavar="N", help="from one strided window to the next (default: half the context)")
    context = number(int, 1, 2**20)
    add("--context", type=context, metavar="N", help="characters in a window (default: the model's own context)")
    add("--per-char", action="store_true", help="print JSON lines, one a character; the figures go to stderr")
    add("--html", metavar="OUT", help="write a page with the text coloured by surprisal")
    add("--encoding", default="utf-8", metavar="E", help="of the text (default utf-8)")
    add("--device", type=device, default="cpu", metavar="D", help="cpu, cuda, cuda:1, mps (default cpu)")
    return parser.parse_args(arguments)


def run(options: argparse.Namespace) -> None:
    """Check what was typed, and do the work with the page open: a name that cannot be used is known at once."""
    checkpoints = [runs.find_model(name) for name in (options.checkpoint, options.compare) if name is not None]
    text = Path(options.file)
    if options.file != "-" and not text.exists():
        others = os.listdir(text.parent) if text.parent.is_dir() else []
        raise InputError(f"{options.file}: no such file{nearest(text.name, others)}")
    if options.stride and options.window not in (None, "strided"):
        raise InputError(f"--stride {options.stride}: has no meaning for --window {options.window}, only for strided")
    page = nullcontext() if options.html is None else writing_to(options.html, "--html", [*checkpoints, text])
    with page as out:
        tell(checkpoints, options, out)


def tell(checkpoints: list[Path], options: argparse.Namespace, page_file: TextIO | None) -> None:
    """Load, read, score and show."""
    readers = read(checkpoints, options)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    out = sys.stderr if options.per_char else sys.stdout
    letters = ["A  ", "B  "] if options.compare else [""]
    for letter, reader in zip(letters, readers, strict=True):
        print(letter + reader.name, file=out)
    if len({reader.model.config.context for reader in readers}) > 1:
        print("their contexts differ: the model that sees more characters has it easier", file=out)

    begun = time.perf_counter()
    # Where lines are to come as they are computed, nothing is computed before them.
    modes = [options.window] if options.window else list(reversed(BOTH) if options.per_char else BOTH)
    for mode in modes:
        in_detail = mode == (options.window or "strided") and (options.per_char or page_file or options.compare)
        scores, lines = (
            show(readers, mode, options, page_file) if in_detail else ([measure(each, mode) for each in readers], [])
        )
        if mode == modes[0]:
            length = f"{count(scores[0].characters, 'character')}, {count(scores[0].bytes, 'byte')}"
            print(f"{called(options.file)}: {length}", file=out)
            print(row("", ["nats/character", "bits/character", "bits/byte"]), file=out)
        for letter, reader, score in zip(letters, readers, scores, strict=True):
            print(row(letter + describe(reader, mode), figures(score)), file=out)
        if options.compare:
            print(row(f"B - A  {mode} windows", difference(*scores)), file=out)
        if lines:
            print(f"{mode} windows differ most in the lines (bits per character; +: B is the more surprised)", file=out)
        for line in lines:
            print(line, file=out)
    seconds, total = time.perf_counter() - begun, len(modes) * sum(len(reader.tokens) for reader in readers)
    print(f"{count(total, 'prediction')} in {seconds:.1f} s, {total / seconds:,.0f} a second", file=sys.stderr)


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
        from gpt.model import with_context

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
    if options.html is not None and len(texts[0]) > LONGEST_PAGE * np.dtype(tokenizers[0].dtype).itemsize:
        raise InputError(f"--html: {document.name} is longer than a page can show, {LONGEST_PAGE:,} characters")
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
    from gpt.evaluate import predictions

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
    """The same as sample.py sees it: the text is read once from its beginning, by the window rule of `gpt.decode`."""
    import numpy as np
    import torch

    from gpt.decode import Decoder
    from gpt.generate import weights_of

    decoder = Decoder(weights_of(reader.model))
    for start in range(0, len(reader.tokens) - 1, batch):
        tokens = torch.from_numpy(reader.tokens[start : start + batch + 1].astype(np.int64))
        yield torch.from_numpy(decoder.read(tokens[None, :-1].numpy())[0]), tokens[1:]


def sizes(reader: Reader) -> "tuple[Tensor, Tensor]":
    """How many characters and bytes each token stands for."""
    import torch

    return torch.from_numpy(reader.tokenizer.characters_per_token), torch.from_numpy(reader.tokenizer.bytes_per_token)


def measure(reader: Reader, mode: str) -> "Score":
    """The score alone."""
    from gpt.evaluate import reduce

    return reduce(predicted(reader, mode), int(reader.tokens[0]), reader.model.vocabulary, *sizes(reader))


def show(
    readers: list[Reader], mode: str, options: argparse.Namespace, page_file: TextIO | None
) -> "tuple[list[Score], list[str]]":
    """Score the text, and say what each of its characters costs: as JSON lines, as a page, as lines that differ.

    Returns:
        The score of each reader, and lines to print below them.
    """
    import torch

    from gpt.evaluate import score, totals
    from gpt.page import Columns, page

    names = [reader.tokenizer.names for reader in readers]
    sums = [torch.zeros(4, dtype=torch.float64) for _ in readers]
    columns = [Columns(reader.model.vocabulary) for reader in readers]
    whole, differences = io.StringIO(), Differences()
    for piece in pieces(readers, mode):
        for reader, total, costs in zip(readers, sums, piece.costs, strict=True):
            total += totals(costs.nats, costs.tokens, *sizes(reader))
        if options.per_char:
            with hidden():
                sys.stdout.writelines(json_lines(piece, names))
                sys.stdout.flush()
        if options.compare:
            differences.add(piece.text, piece.costs[1].nats - piece.costs[0].nats)
        if page_file:
            whole.write(piece.text)
            for column, costs in zip(columns, piece.costs, strict=True):
                column.add(costs)
    scores = [score(total) for total in sums]
    if page_file:
        about = {
            "title": called(options.file),
            "characters": scores[0].characters,
            "models": [
                {
                    "name": reader.name,
                    "mode": describe(reader, mode),
                    "figures": figures(each),
                    "vocabulary": vocabulary,
                }
                for reader, each, vocabulary in zip(readers, scores, names, strict=True)
            ],
            "difference": difference(*scores) if options.compare else None,
        }
        page_file.write(page(about, whole.getvalue(), columns))
    return scores, differences.most() if options.compare else []


def pieces(readers: list[Reader], mode: str) -> Iterator[Piece]:
    """What the characters of the text cost each reader."""
    from gpt.surprisal import by_character, costs, letters

    streams = []
    for reader in readers:
        each = costs(predicted(reader, mode), int(reader.tokens[0]), reader.model.vocabulary, LIKELY)
        streams.append(by_character(each, sizes(reader)[0], PIECE))
    position = 0
    for group in zip(*streams, strict=True):
        text = letters(group[0], readers[0].tokenizer.decode)
        yield Piece(position, text, list(group))
        position += len(text)


# -- What is said of each character ------------------------------------------------------------------


def json_lines(piece: Piece, names: list[list[str]]) -> Iterator[str]:
    """One line of JSON for each character; of the second model, under "other"."""
    said = [list(opinions(costs, names_of)) for costs, names_of in zip(piece.costs, names, strict=True)]
    for offset, (letter, opinion) in enumerate(zip(piece.text, said[0], strict=True)):
        line = {"position": piece.position + offset, "character": letter} | opinion
        if len(said) > 1:
            line["other"] = said[1][offset]
        yield json.dumps(line) + "\n"


def opinions(costs: "Costs", names: list[str]) -> Iterator[dict[str, Any]]:
    """What each character cost, in nats, and the probabilities of the likeliest."""
    for nats, likely, chances in zip(costs.nats.tolist(), costs.likely.tolist(), costs.chances.tolist(), strict=True):
        best = {names[token]: round(chance, 6) for token, chance in zip(likely, chances, strict=True) if chance > 0}
        yield {"nats": round(nats, 9), "likely": best}


class Differences:
    """The lines that cost one model much more than the other, as the page ranks them: per character.

    Short lines are left out, for one character may decide them; of lines with the same beginning, one is named.
    """

    def __init__(self) -> None:
        self.best: dict[str, tuple[float, int, float]] = {}  # by what is shown: size, -number, bits per character
        self.line, self.shown, self.length, self.nats = 1, "", 0, 0.0

    def add(self, text: str, nats: "Tensor") -> None:
        """Go on in the text.

        Args:
            text: N characters.
            nats: (N,) how much more each costs B than A.
        """
        parts = text.split("\n")
        # Line ends, which join the parts, cost something as well, but belong to no line.
        ends = accumulate(len(part) + 1 for part in parts)
        for place, (part, end) in enumerate(zip(parts, ends, strict=True)):
            if place:
                self._end()
            self.shown = (self.shown + part[:SHOWN])[:SHOWN]
            self.length += len(part)
            self.nats += float(nats[end - 1 - len(part) : end - 1].sum())

    def _end(self) -> None:
        if self.length >= SHORTEST and self.nats:
            bits = self.nats / math.log(2) / self.length
            entry = abs(bits), -self.line, bits
            self.best[self.shown] = max(entry, self.best.get(self.shown, entry))
            if len(self.best) > DIFFERENCES:
                del self.best[min(self.best, key=self.best.__getitem__)]
        self.line, self.shown, self.length, self.nats = self.line + 1, "", 0, 0.0

    def most(self) -> list[str]:
        """Once the text has ended: what they are, to be printed."""
        self._end()
        ranked = sorted(((*entry, shown) for shown, entry in self.best.items()), reverse=True)
        return [f"{-line:>9,}  {bits:+8.2f}  {printable(shown)}" for _, line, bits, shown in ranked]


# -- Figures -----------------------------------------------------------------------------------------


def figures(score: "Score") -> list[str]:
    """Nats per character, bits per character, bits per byte."""
    return [f"{value:.6f}" for value in (score.bpc * math.log(2), score.bpc, score.bpb)]


def difference(a: "Score", b: "Score") -> list[str]:
    """How much more B costs than A."""
    return [f"{value:+.6f}" for value in ((b.bpc - a.bpc) * math.log(2), b.bpc - a.bpc, b.bpb - a.bpb)]


def count(number: int, what: str) -> str:
    """How many there are, in words."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def row(name: str, cells: list[str]) -> str:
    """A row of the table."""
    return f"{name:<42}" + "".join(f"{cell:>16}" for cell in cells)


if __name__ == "__main__":
    sys.exit(cli())
