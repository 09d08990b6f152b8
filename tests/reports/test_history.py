import copy

from reports.history import BoundedSeries, History


def test_a_full_history_keeps_every_second_entry_and_goes_on_alike_after_a_resume():
    history = BoundedSeries(4)
    stored = ["0", "01", "012", "0123", "024", "024", "0246", "0246", "048"]
    for number, entries in enumerate(stored):
        history.add(number)
        assert history.entries == list(map(int, entries))
    resumed = BoundedSeries(**copy.deepcopy(vars(history)))
    for number in range(9, 40):
        history.add(number)
        resumed.add(number)
    assert resumed.entries == history.entries == [0, 16, 32] and resumed == history


def test_a_history_goes_on_from_its_state():
    history = History()
    history.add_loss(3.0)
    history.add_loss(2.0)
    history.end_interval(2)
    history.add_loss(1.5)
    history.add_validation(0, 1.0, 1.4)
    history.add_validation(10, 2.0, 2.9)
    history.seconds = 7.0
    resumed = History.of(copy.deepcopy(history.state()))
    assert resumed == history and resumed.losses.entries == [[2, 2.5]]
    assert (resumed.best_step, resumed.best_loss) == (10, 2.0), (
        "not the loss of a trained model before the first step"
    )
    resumed.add_loss(2.5)
    assert resumed.end_interval(4) == 2.0
    assert resumed.elapsed() == 7.0
    resumed.start_clock()
    assert resumed.state()["seconds"] > 7.0
