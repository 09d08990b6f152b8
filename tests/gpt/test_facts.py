from base.jobs.run_directory import Summary
from gpt.config import ModelConfig
from gpt.facts import duration, facts, rounded

SUMMARY = Summary(
    val_loss=1.25, last_val_loss=1.3, best_step=40, parameters=812_288,
    evaluation={"mode": "disjoint", "context": 24, "characters": 500, "split_characters": 6_874},
    steps=60, characters=1_234_567, epochs=1.4, seconds=187.2, characters_per_second=7288.4,
    device="cpu", precision="32-true", seed=7, init_from="/home/ann/m.safetensors",
)  # fmt: skip


def test_large_numbers_are_written_in_full():
    shown = {0.25: "0.25", 1.23: "1.2", 9.99: "10", 123.4: "123", 1511.0: "1,511"}
    assert [rounded(number, 2) for number in shown] == list(shown.values())


def test_the_unit_of_a_duration():
    durations = {0.4: "0 s", 59.4: "59 s", 59.5: "1:00 minutes", 3599.4: "59:59 minutes"}
    durations[3599.5] = "1:00:00 hours"
    assert [" ".join(duration(seconds)) for seconds in durations] == list(durations.values())


def test_each_fact_of_a_run_is_a_sentence_without_folders():
    known = dict(facts(SUMMARY, ModelConfig(), "byte"))
    assert known.pop("shape").startswith(f"{ModelConfig().layers} layers, ")
    assert known == {
        "validation loss": "1.2500 nats (1.8034 bits) per byte; lower is better",
        "measured on": "500 evenly spaced of 6,874 characters of the validation split in disjoint windows of 24",
        "last checkpoint": "validation loss of 1.3000 nats (1.8755 bits)",
        "weights": "812,288, of step 40",
        "training": "60 steps, 1,234,567 bytes (1.4 epochs), 7,288 a second during steps",
        "time": "3:07 minutes",
        "machine": "cpu, 32-true, seed 7, started from m.safetensors; ",
    }
