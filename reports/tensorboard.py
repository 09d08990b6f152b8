"""Write what TensorBoard shows: the layout of charts, the table of hyper-parameters, samples, and the projector."""

import os
import struct
import time
import unicodedata
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError
from tensorboard.summary.writer.record_writer import RecordWriter
from torch import Tensor

from base.files import write_text
from base.options import spell
from reports.glyphs import visible
from reports.tensorboard_private import Event, Summary


def _chart(*tags: str) -> list[Any]:
    return ["Multiline", [f"{tag}$" for tag in tags]]  # TensorBoard matches these regular expressions from the start


# The charts of TensorBoard's page CUSTOM SCALARS, by group and title.
LAYOUT = {
    "Does it learn?": {
        "loss (nats per token)": _chart("train/loss", "val/loss"),
        "bits per character": _chart("train/bpc", "val/bpc"),
    },
    "Are the steps right?": {
        "learning rate": _chart("optim/lr"),
        "gradient norm": _chart("optim/grad_norm"),
        "share of steps that were clipped": _chart("optim/clip_share"),
        "update / weight of a step, by group": _chart("update/.*"),
    },
    "Is the machine busy?": {
        "characters per second": _chart("perf/chars_per_s"),
        "share of peak (MFU)": _chart("perf/mfu"),
        "memory (GiB)": _chart("perf/memory_gib"),
    },
}


def layout(unknown: Collection[str]) -> dict[str, dict[str, list[Any]]]:
    """Return `LAYOUT` for `SummaryWriter.add_custom_scalars`, without charts whose tag this run does not log."""
    empty = [_chart(tag) for tag in unknown]
    return {
        group: {title: chart for title, chart in charts.items() if chart not in empty}
        for group, charts in LAYOUT.items()
    }


def log_result(run: Path, settings: Mapping[str, Any], step: int, scores: Mapping[str, float]) -> None:
    """Write the run's row of TensorBoard's table HPARAMS; a run without event files logs nothing."""
    if newest_events(run) is None:
        return
    from torch.utils.tensorboard.summary import hparams

    plain = {key: value if isinstance(value, bool | int | float) else spell(value) for key, value in settings.items()}
    _, begun, ended = hparams(plain, {})  # the first summary would fix the columns for all runs
    values = [Summary.Value(tag=tag, simple_value=score) for tag, score in scores.items()]
    cut_events(run, step)  # removes the row that an interrupted finish has written
    # Log the row at step + 1: resuming the run at `step` then removes the row.
    for at, summary in ((step + 1, begun), (step, Summary(value=values)), (step + 1, ended)):
        append(run, at, summary)


def newest_events(run: Path) -> Path | None:
    """Return the event file that TensorBoard reads last; None if the run has none."""
    files = [file for file in run.glob("events.out.tfevents.*") if not file.is_symlink()]
    return max(files, key=lambda file: file.name, default=None)


def append(run: Path, step: int, summary: Summary) -> None:
    """Append a summary to the newest event file, after the loggers have closed it."""
    newest = newest_events(run)
    if newest is not None:
        with open(newest, "ab") as file:
            event = Event(wall_time=time.time(), step=step, summary=summary)
            RecordWriter(file).write(event.SerializeToString())


def cut_events(run: Path, step: int) -> None:
    """Remove the events after `step` and incomplete records, both left by a process that was killed.

    A record is its length n (8 bytes), a checksum (4), an `Event` (n) and a checksum (4).
    """
    for file in run.glob("events.out.tfevents.*"):
        if file.is_symlink():
            continue
        with open(file, "r+b") as events:
            end, size = 0, os.fstat(events.fileno()).st_size
            while len(head := events.read(12)) == 12:
                (length,) = struct.unpack("<Q", head[:8])
                if events.tell() + length + 4 > size:
                    break
                try:
                    event = Event.FromString(events.read(length + 4)[:-4])
                except DecodeError:
                    break
                if event.step > step:
                    break
                end = events.tell()
            events.truncate(end)


def as_markdown(samples: list[tuple[str, str]]) -> str:
    """Format (prompt, text) pairs so that TensorBoard shows every character literally.

    All characters except ASCII letters and digits become numeric entities, so that Markdown and HTML leave them alone.
    `visible` symbols replace the invisible characters except line breaks, spaces and tabs.
    """

    def block(text: str) -> str:
        symbols = "".join(c if c in "\n\t " else visible(c) for c in text)
        coded = (c if c.isascii() and c.isalnum() else f"&#{ord(c)};" for c in symbols)
        return f"<pre><code>{''.join(coded)}</code></pre>"

    parts = []
    for prompt, text in samples:
        parts += ["**prompt**", block(prompt), "**the model continues**", block(text)]
    return "\n\n".join(parts)


PROJECTOR_CONFIG = """embeddings {
  tensor_name: "embedding"
  tensor_path: "projector/tensors.tsv"
  metadata_path: "projector/metadata.tsv"
}
"""


def write_projector(run: Path, embedding: Tensor, names: list[str], counts: Tensor) -> None:
    """Write the embedding (V, C) for TensorBoard's PROJECTOR, with the names and counts (V,) of the V tokens."""
    (run / "projector").mkdir(exist_ok=True)
    vectors = ("\t".join(f"{value:.6g}" for value in row) for row in embedding.tolist())
    write_text(run / "projector" / "tensors.tsv", "\n".join(vectors) + "\n")
    rows = ["character\tcode point\tcategory\tper thousand"]
    for name, share in zip(names, (1000 * counts / counts.sum()).tolist(), strict=True):
        code = f"U+{ord(name):04X}" if len(name) == 1 else name
        category = unicodedata.category(name) if len(name) == 1 else "byte"
        rows.append(f"{visible(name)}\t{code}\t{category}\t{share:.3f}")
    write_text(run / "projector" / "metadata.tsv", "\n".join(rows) + "\n")
    write_text(run / "projector_config.pbtxt", PROJECTOR_CONFIG)
