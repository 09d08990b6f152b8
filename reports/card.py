"""Describe a model in a Markdown model card: its training text, its losses and a sample of its writing."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from jinja2 import Template

from base.errors import printable, without_folders, without_places
from base.jobs.run_directory import Run, Summary
from base.options import spell
from base.progress import count
from conf.compose import quoted, read_config
from conf.keys import LAUNCH, PATHS
from conf.schema import PLUGINS, Config, by_key
from gpt.facts import facts
from gpt.inference.continuation import complete_documents
from gpt.inference.generate import TEMPERATURE, generate
from gpt.model import GPT
from gpt.tokenizer import tokenizer_from

# settings of which the card shows only the last path component
PRIVATE = (*PATHS, "data.cache_dir", "init_from")
TEMPLATE = Path(__file__).with_name("assets") / "card.md"
# Text that Hydra's grammar reads as itself without quotes.
PLAIN = re.compile(r"(?!(true|false|null|inf|nan)$)[a-z_][\w./-]*", re.ASCII | re.IGNORECASE)


def card(model: GPT, meta: Mapping[str, Any], file: Path, *, hf: bool = False) -> str:
    """Return the Markdown model card of the model in `file`, and if `file` is in a run directory, of its run.

    `hf` adds metadata for the Hugging Face Hub, and how to load the model with transformers.
    """
    run = Run(file.resolve().parents[1])
    summary = Summary()
    command = ""  # which repeats the run; "" if `file` is in none
    split = ""
    if file.resolve().parent.name == "checkpoints" and run.config.exists():
        summary = run.summary
        config = read_config(run.directory, classes=False)
        command = fenced(
            shlex.join(["python", "train.py", *map(public_setting, repeating(config))])
        )
        shares = ", ".join(f"{share:g}" for share in config.data.split)
        split = f"; split {shares} into training, validation and test"
        if config.data.validation is not None:
            split = "; validation and test are files of their own"
    tokenizer = tokenizer_from(meta["vocabulary"])
    documents = meta["documents"]
    prompt = tokenizer.encode(documents["end"] if documents else tokenizer.default_prompt)
    tokens = generate(model, prompt, 400, temperature=TEMPERATURE, seed=0)[len(prompt) :]
    sample = tokenizer.decode(tokens.numpy())
    if documents:
        sample = complete_documents(sample, documents["end"])
    template = Template(TEMPLATE.read_text("utf-8"), trim_blocks=True, keep_trailing_newline=True)
    return template.render(
        hf=hf,
        name=escape(run.name if command else file.stem),
        unit=tokenizer.unit,
        rows=[(key, escape(value)) for key, value in rows(model, meta, summary, split)],
        command=command,
        temperature=f"{TEMPERATURE:g}",
        sample=fenced(sample.strip("\n")),
    )


def repeating(config: Config) -> list[str]:
    """Return the arguments that train the same again, with what the run has chosen for each `auto`."""
    defaults = by_key(Config())
    arguments = []
    for key, value in by_key(config).items():
        # the steps that `minutes` has chosen replace it
        if key in LAUNCH or key == "minutes" or (key not in PLUGINS and value == defaults[key]):
            continue
        if not isinstance(value, dict):
            arguments.append(f"{key}={spell(value)}")
            continue
        options = value
        if key in PLUGINS:
            arguments.append(f"{key}={spell(list(value))}")
            options = by_key(value)
        for name, option in options.items():
            if isinstance(option, str) and not PLAIN.fullmatch(option):
                option = quoted(option)
            arguments.append(f"{key}.{name}={spell(option)}")
    return arguments


def public_setting(setting: str) -> str:
    key, _, value = setting.partition("=")
    is_path = key in PRIVATE
    if key.startswith(PLUGINS):  # an argument may be anything
        value = value.strip("'\"")
        is_path = "/" in value or "\\" in value
    if not is_path:
        return setting
    names = without_folders(value)
    if value.startswith("["):
        names = f"[{names.replace(', ', ',')}]"
    return f"{key}={names}"


def rows(
    model: GPT, meta: Mapping[str, Any], summary: Summary, split: str
) -> Iterator[tuple[str, str]]:
    """Yield the rows (key, value) of the card's table; `summary` is empty if the model is not in a run directory.

    `split` says how the text was divided and ends the first row.
    """
    tokenizer = tokenizer_from(meta["vocabulary"])
    unit = tokenizer.unit
    sizes = count(tokenizer.size, f"distinct {unit}")
    if summary.characters and summary.epochs and summary.evaluation:
        trained = round(summary.characters / summary.epochs)  # tokens of the training split
        validated = summary.evaluation["split_characters"]
        sizes += f", {count(trained, unit)} for training, {count(validated, 'character')} for validation"
    yield "text", f"{meta['text']}; {sizes}{split}"
    documents = meta["documents"]
    if documents:
        yield (
            "documents",
            f"{documents['kind']}s, each followed by the end mark {json.dumps(documents['end'])}",
        )
    for note in map(without_places, summary.notes or ()):
        if note:
            yield "", note
    evaluation = meta["evaluation"]
    if evaluation:
        evaluation = {**(summary.evaluation or {}), **evaluation}
    if meta["step"] != summary.best_step:  # these are of another model
        summary = replace(summary, test_loss=None, copies=None)
    of_model = replace(
        summary,
        val_loss=meta["val_loss"],
        evaluation=evaluation,
        best_step=meta["step"],
        parameters=model.num_parameters(),
    )
    yield from facts(of_model, model.config, unit)


def fenced(text: str) -> str:
    """Return `text` as a Markdown code block, with a fence longer than any run of backticks in the text."""
    longest_run = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, 1 + longest_run)
    lines = []
    for line in text.split("\n"):
        cells = map(printable, line.split("\t"))  # `printable` would replace tabs, too
        lines.append("\t".join(cells))
    return "\n".join([f"{fence}text", *lines, fence])


def escape(text: str) -> str:
    # Markdown would interpret these characters as markup.
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", printable(text))
