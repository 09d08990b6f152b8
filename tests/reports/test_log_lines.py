from dataclasses import replace
from pathlib import Path

from base.jobs.run_directory import Run
from base.jobs.summary import Summary
from reports.log_lines import has_learned_nothing, verdict

RUN = Run(Path("runs/a b"))
SUMMARY = Summary(
    uniform_loss=4.06, ngram_loss=2.27, ngram_order=4, val_loss=2.25, last_val_loss=2.25, best_step=300, steps=300,
    epochs=38.0,
)  # fmt: skip


def test_memorising_has_a_name() -> None:
    assert verdict(RUN, SUMMARY, [[300, 2.0]], 100) == []
    risen = replace(SUMMARY, last_val_loss=2.6, best_step=180)
    (said,) = verdict(RUN, risen, [[10, 4.0], [300, 1.2]], 100)
    assert said.startswith("The text was read 38 times and memorised from step 180 on: best.safetensors is the model")
    for fine, losses in ((replace(risen, epochs=1.5), [[300, 1.2]]), (risen, [[300, 2.1]]), (risen, [])):
        assert verdict(RUN, fine, losses, 100) == []


def test_a_model_is_told_that_counting_is_better() -> None:
    worse = replace(SUMMARY, val_loss=2.3, last_val_loss=2.3)
    (said,) = verdict(RUN, worse, [[300, 2.0]], 100)
    assert said.startswith("A 4-gram model predicts better.") and "'resume=runs/a b' trainer.max_steps=600)" in said
    assert "more steps" not in verdict(RUN, replace(worse, last_val_loss=2.31), [], 100)[0]
    assert verdict(RUN, replace(SUMMARY, val_loss=9.0, ngram_loss=None), [], 100) == []


def test_what_is_no_better_than_guessing_has_learned_nothing() -> None:
    assert not has_learned_nothing(SUMMARY, 100)
    assert has_learned_nothing(replace(SUMMARY, val_loss=4.07), 100)
    assert not has_learned_nothing(replace(SUMMARY, val_loss=4.07, steps=3), 100), "it has hardly begun"
    assert has_learned_nothing(replace(SUMMARY, val_loss=1.6e13, steps=3), 100)
