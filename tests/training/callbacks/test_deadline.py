import math
import os
import re
import shlex
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from base import processes
from base.jobs.run_directory import Run
from conf.compose import read_config
from reports.card import repeating
from reports.history import History
from tests.conf.test_defaults import compose
from tests.conftest import assert_same_weights, last, summary
from tests.faults import faults
from tests.faults.processes import run
from training.callbacks import deadline
from training.callbacks.deadline import END_SECONDS, TIMED_STEPS, Deadline
from training.machine import Machine

SECONDS_PER_TOKEN = 0.002  # of a validation


class Clock:
    """Steps of a pretended run, by a clock of its own; it stands for Lightning's trainer and for the module."""

    def __init__(self, monkeypatch, minutes=1, cooldown=0.5, steps_needed=10**9, evaluated=900):
        self.now = 0.0
        # the last validation, and the evaluation unless it is the same
        tokens_at_end = 100 + evaluated if evaluated > 100 else 100
        self.seconds_at_end = tokens_at_end * SECONDS_PER_TOKEN + END_SECONDS
        # numbers of steps; when they were chosen; the steps of the validations
        self.chosen, self.chosen_at, self.validated = [], [], []
        self.config = compose([f"minutes={minutes}", f"optim.cooldown={cooldown}"])
        self.machine, self.history = Machine("cpu", import_seconds=0.0), History()
        self.asynchronous = False
        self.max_steps, self.global_step = -1, 0
        self.lightning_module = self.fit_loop = self.epoch_loop = self
        self.datamodule = SimpleNamespace(num_validated=100, num_evaluated=lambda steps: evaluated)
        monkeypatch.setattr(deadline, "time", SimpleNamespace(perf_counter=lambda: self.now))
        monkeypatch.setattr(processes, "BEGAN", 0.0)
        monkeypatch.setattr(Deadline, "save", self.save)
        self.callback = Deadline(Run(Path("runs/a")), self, steps_needed, None)

    def save(self, module, steps, interval):
        self.chosen.append(steps)
        self.chosen_at.append(self.global_step)

    def train(self, seconds_of):
        """Take all steps, `seconds_of` a step each, and validate as Lightning does; return when the run has ended."""
        while self.global_step != self.max_steps:
            self.callback.on_train_batch_start()
            self.now += seconds_of(self)
            self.global_step += 1
            self.callback.on_train_batch_end(self, self)
            if self.global_step % self.val_check_batch == 0 and self.global_step != self.max_steps:
                self.callback.on_validation_start()
                self.now += 100 * SECONDS_PER_TOKEN
                self.callback.on_validation_end(self)
                self.history.add_validation(self.global_step, 1.0, 1.0)
                self.validated.append(self.global_step)
        return self.now + self.seconds_at_end


@pytest.mark.parametrize(
    ("cooldown", "evaluated"), [(0.5, 4900), (0.5, 100), (0.2, 900), (0.0, 900)]
)
def test_the_steps_are_chosen_once_and_fill_the_time(monkeypatch, cooldown, evaluated):
    clock = Clock(monkeypatch, cooldown=cooldown, evaluated=evaluated)
    assert 59 < clock.train(lambda _: 0.1) <= 60.5
    (steps,) = clock.chosen
    assert steps == clock.global_step
    assert clock.chosen_at == [pytest.approx((1 - cooldown) * steps, abs=1)]


@pytest.mark.parametrize("minutes, step_seconds, expected", [
    (1, 0.1, 12), (30, 0.1, 30), (100, 0.1, 40), (1, 0.001, 12), (0.5, 0.1, 6),
])  # fmt: skip
def test_validations_are_as_many_as_five_percent_of_the_time_allows(
    minutes, step_seconds, expected, monkeypatch
):
    clock = Clock(monkeypatch, minutes)
    assert clock.train(lambda _: step_seconds) <= 60 * minutes + 0.5
    (steps,) = clock.chosen
    assert abs(len(clock.validated) - expected) <= 2
    assert steps - clock.validated[-1] > 0.7 * (clock.validated[-1] - clock.validated[-2])
    while_rates_fall = [step for step in clock.validated if step > steps / 2]
    assert len(while_rates_fall) == pytest.approx(len(clock.validated) / 2, abs=1)
    assert len({step % while_rates_fall[0] for step in while_rates_fall}) == len(while_rates_fall)


@pytest.mark.parametrize(("minutes", "steps_needed", "steps"), [
    (1, 400, 400), (1, 10, 2 * TIMED_STEPS + 2), (0.01, 10**9, 1),
])  # fmt: skip
def test_a_run_ends_when_the_text_is_learned_or_its_time_is_over(
    monkeypatch, minutes, steps_needed, steps
):
    clock = Clock(monkeypatch, minutes, 0.5, steps_needed)
    clock.train(lambda _: 0.1)
    assert clock.chosen == [steps] and clock.global_step == steps


@pytest.mark.parametrize("begins", [12, 27, 33, 48])
@pytest.mark.parametrize("before", [0.1, 0.2])
@pytest.mark.parametrize("after", [0.1, 0.104, 0.2])
@pytest.mark.parametrize("cooldown", [0.5, 1.0])
def test_a_slower_machine_shortens_a_run_and_a_faster_one_does_not_lengthen_it(
    monkeypatch, begins, before, after, cooldown
):
    clock = Clock(monkeypatch, cooldown=cooldown)
    ended = clock.train(lambda clock: after if clock.now > begins else before)
    assert ended < 60.7
    assert clock.chosen == sorted({*clock.chosen}, reverse=True), "it is only ever shortened"
    if cooldown < 1:  # otherwise the first choice knows of no validation
        assert len(clock.chosen) == 1 or after > before
    if after >= before:
        assert ended > 58  # the validations of this clock do not become slower


@pytest.mark.parametrize("step", [12, 400])
def test_a_profile_costs_its_time_and_no_other_steps(monkeypatch, step):
    clock = Clock(monkeypatch)

    def seconds_of(clock):
        if clock.global_step == step:  # the end of a profile
            clock.now += 10
            clock.callback.begin_timing()
        return 0.1

    assert 57 < clock.train(seconds_of) <= 60.5


SMALL = (
    "model.layers=1 model.dim=32 model.context=32 data.batch=4 model.dropout=0 logger=none compile=false "
    "optim.lr=0.006 optim.warmup=50 trainer.accelerator=cpu data.path=book.txt watch.pictures=false"
).split()


def assert_as_with_steps(train):
    """The run runs/timed has come to the weights of a run whose number of steps was set."""
    given = repeating(read_config(Path("runs/timed")))
    again = train("name=steps", *given, "callbacks=[]", "model.dropout=0", defaults=False)
    assert again.status == 0, again
    assert_same_weights("timed", "steps")


@pytest.mark.promise
@pytest.mark.slow
def test_a_run_ends_in_its_time_with_the_weights_of_as_many_steps(train, monkeypatch):
    # the clock decides
    monkeypatch.setattr("training.choosing.time_budget.tokens_needed", lambda *_: math.inf)
    monkeypatch.setattr(deadline, "LATE_SECONDS", math.inf)  # a busy machine may not change them
    # by a clock that other programs do not move
    monkeypatch.setattr(time, "perf_counter", time.process_time)
    started = time.process_time()
    ended = train("name=timed", "minutes=0.1", *SMALL, defaults=False)
    seconds = time.process_time() - started
    assert ended.status == 0 and 3.5 < seconds < 6.5, (seconds, ended)
    steps = read_config(Path("runs/timed")).trainer.max_steps
    assert f"\nminutes    {steps:,} steps in all: the learning rate falls from step" in ended.out
    assert summary("timed")["steps"] == steps > 100
    assert 3 < ended.out.count("validation loss") < 15, "at equal times"
    assert_as_with_steps(train)
    assert "is finished" in train("resume=timed", defaults=False).out


@pytest.mark.slow
def test_a_run_that_is_stopped_after_the_choice_keeps_its_steps(train, monkeypatch):
    monkeypatch.setattr(deadline, "END_SECONDS", 0)
    monkeypatch.setattr(time, "perf_counter", time.process_time)
    choose = Deadline.save

    def stopped(callback, *given):
        choose(callback, *given)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Deadline, "save", stopped)
    assert train("name=timed", "minutes=0.05", *SMALL, defaults=False).status == 143
    steps = read_config(Path("runs/timed")).trainer.max_steps
    assert last("timed")["global_step"] < steps
    assert train("resume=timed", defaults=False).status == 0
    assert summary("timed")["steps"] == steps
    assert_as_with_steps(train)


@pytest.mark.slow
def test_a_callback_may_end_a_run_before_the_choice(train):
    stopping = "callbacks=early_stopping callbacks.early_stopping.patience=1 callbacks.early_stopping.min_delta=100"
    ended = train("name=a", "minutes=0.3", *SMALL, *stopping.split(), defaults=False)
    assert ended.status == 0, ended
    trainer = read_config(Path("runs/a")).trainer
    steps = trainer.max_steps
    run = summary("a")
    assert run["status"] == "finished" and run["steps"] == steps
    assert len(run["validations"]) == math.ceil(steps / trainer.val_check_interval) == 2
    report = Path("runs/a/report.html").read_text()
    assert f"trainer.val_check_interval={trainer.val_check_interval} " in report
    assert "before its learning rate fell" in report
    finished = train("resume=a", defaults=False).out
    (printed,) = re.findall("is finished: .*; (.*) continues it", finished)
    _, _, *arguments = shlex.split(printed)
    continued = train(*arguments, defaults=False)
    assert continued.status == 0 and summary("a")["steps"] == 2 * steps, continued


def test_a_resumed_run_has_the_time_that_earlier_processes_left(monkeypatch):
    clock = Clock(monkeypatch)
    clock.history.seconds = 20
    clock.callback = Deadline(Run(Path("runs/a")), clock, 10**9, None)
    assert 39 < clock.train(lambda _: 0.1) <= 40.5


@pytest.mark.slow
def test_a_run_that_is_killed_before_the_choice_has_the_time_that_is_left(train, workplace):
    # a short one needs less than the time
    Path("long.txt").write_text(26 * Path("book.txt").read_text())
    given = "name=cut minutes=0.2 data.path=long.txt trainer.checkpoint_minutes=1e-6".split()
    killed = run(*SMALL, *given, fault=(faults.before_rename, 12, "last.ckpt"))
    assert killed.status < 0 and read_config(Path("runs/cut")).trainer.max_steps == "auto"
    started = time.monotonic()
    ended = train("resume=cut", defaults=False)
    assert ended.status == 0 and time.monotonic() - started < 15, ended
    assert read_config(Path("runs/cut")).trainer.max_steps == summary("cut")["steps"] > 100
