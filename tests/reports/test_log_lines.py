import re
from dataclasses import replace
from pathlib import Path

import pytest

from base.jobs.run_directory import Run, Summary
from base.log import to_console
from data.config import DataConfig
from data.text import open_text
from reports.log_lines import introduce, verdict
from tests.conf.test_defaults import compose

RUN = Run(Path("runs/a b"))
SUMMARY = Summary(
    uniform_loss=4.06, ngram_loss=2.27, ngram_order=4, val_loss=2.25, last_val_loss=2.25, best_step=300, steps=300,
    epochs=38.0,
)  # fmt: skip


def test_memorising_has_a_name_and_so_has_what_counting_does_better():
    assert verdict(RUN, SUMMARY, [[300, 2.0]]) == []
    risen = replace(SUMMARY, last_val_loss=2.6, best_step=180)
    (said,) = verdict(RUN, risen, [[10, 4.0], [300, 1.2]])
    assert said.startswith(
        "The text was read 38 times and memorised from step 180 on: best.safetensors is the model"
    )
    assert verdict(RUN, replace(risen, epochs=1.5), [[300, 1.2]]) == []
    assert verdict(RUN, risen, [[300, 2.1]]) == []
    (said,) = verdict(RUN, replace(SUMMARY, val_loss=2.3, last_val_loss=2.3), [[300, 2.0]])
    assert (
        said.startswith("A 4-gram model predicts better.")
        and "'resume=runs/a b' trainer.max_steps=600)" in said
    )


# 200,000 tokens of validation, of which a validation reads 32,768; more tokens than that are a
# quarter of those of over 131,072 / (8 * 256) = 64 steps
@pytest.mark.parametrize(
    ("settings", "more"),
    [
        (["trainer.max_steps=64"], False),
        (["trainer.max_steps=65"], True),
        (["minutes=1"], False),  # the number of steps is not known
    ],
)
def test_more_is_evaluated_at_the_end_only_if_the_run_is_long(settings, more, tmp_path, capsys):
    for name, length in (("train", 1000), ("validation", 200_000)):
        (tmp_path / f"{name}.txt").write_text("ab" * (length // 2))
    data = DataConfig(
        path=str(tmp_path / "train.txt"), validation=str(tmp_path / "validation.txt")
    )
    config = compose(
        [*settings, "model=tiny", "model.dropout=0", "model.context=256", "data.batch=8"]
    )
    to_console()
    introduce(RUN, config, open_text(data, 256), "cpu", 1, [])
    (line,) = re.findall("^validation about .*", capsys.readouterr().out, re.MULTILINE)
    assert ("of the split, more at the end, " in line) == more
