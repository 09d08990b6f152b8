from dataclasses import replace
from pathlib import Path

import pytest

from base.jobs.run_directory import Run, Summary
from data.batches import num_evaluated, num_validated
from reports.log_lines import verdict

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


@pytest.mark.parametrize(
    ("steps", "most", "more"), [(64, None, False), (65, None, True), (65, 9000, False)]
)
def test_more_is_evaluated_at_the_end_only_if_the_run_is_long(steps, most, more):
    """At most as many tokens as a validation reads, unless these are fewer than a quarter of the training's."""
    trained = steps * 8 * 256
    assert (num_evaluated(200_000, trained, most) > num_validated(200_000, most)) == more
