"""Prepare what TensorBoard shows: the layout of charts, and samples."""

from pathlib import Path
from typing import Any

from base.errors import visible
from base.log import log
from base.processes import command


def watch(folder: Path) -> None:
    log.info(f"watch      {command('tensorboard', '--logdir', folder.resolve())}")


def _chart(*tags: str) -> list[Any]:
    return ["Multiline", [f"{tag}$" for tag in tags]]  # TensorBoard matches these regular expressions from the start


def layout(peak_is_known: bool) -> dict[str, dict[str, list[Any]]]:
    """Return the charts of TensorBoard's page CUSTOM SCALARS, {group: {title: chart}}."""
    share_of_peak = {"share of peak (MFU)": _chart("perf/mfu")} if peak_is_known else {}
    return {
        "Does it learn?": {
            "loss (nats per token)": _chart("train/loss", "val/loss"),
            "bits per character": _chart("train/bpc", "val/bpc"),
        },
        "Are the steps right?": {
            "learning rate": _chart("optim/lr"),
            "gradient norm": _chart("optim/grad_norm"),
            "update / weight of a step, by group": _chart("update/.*"),
        },
        "Is the machine busy?": {
            "characters per second": _chart("perf/chars_per_s"),
            **share_of_peak,
            "memory (GiB)": _chart("perf/memory_gib"),
        },
    }


def as_markdown(samples: list[tuple[str, str]]) -> str:
    """Format `samples`, pairs (prompt, text), as Markdown in which TensorBoard shows every character literally."""

    def block(text: str) -> str:
        # Markdown and HTML do not interpret numeric entities.
        coded = (c if c.isascii() and c.isalnum() else f"&#{ord(c)};" for c in visible(text))
        return f"<pre><code>{''.join(coded)}</code></pre>"

    parts = []
    for prompt, text in samples:
        parts += ["**prompt**", block(prompt), "**the model continues**"] if prompt else ["**the model writes**"]
        parts.append(block(text))
    return "\n\n".join(parts)
