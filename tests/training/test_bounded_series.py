import copy

from training.bounded_series import BoundedSeries


def test_a_full_history_keeps_every_second_entry_and_goes_on_alike_after_a_resume() -> None:
    history, expected = BoundedSeries(4), [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3], [0, 2, 4], [0, 2, 4], [0, 2, 4, 6]]
    for number, entries in enumerate([*expected, [0, 2, 4, 6], [0, 4, 8]]):
        history.add(number)
        assert history.entries == entries
    resumed = BoundedSeries(**copy.deepcopy(vars(history)))
    for number in range(9, 40):
        history.add(number)
        resumed.add(number)
    assert resumed.entries == history.entries == [0, 16, 32] and resumed == history
