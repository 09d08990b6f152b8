from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch

from data.batches import (
    STEPS,
    TrainingWindows,
    batches_on_device,
    epoch_starts_in_circle,
    on_device,
    train_batch,
    windows_per_epoch,
)


@pytest.mark.parametrize(
    ("length", "context"), [(9, 8), (10, 8), (16, 8), (17, 8), (100, 8), (101, 7), (50, 1)]
)
def test_epochs_take_every_window_of_their_phase_once(length, context):
    windows = windows_per_epoch(length, context)
    phases = min(context, length - context)
    # By search: the most windows that fit whatever the phase is.
    fitting = [
        len([s for s in range(p, length, context) if s + context + 1 <= length])
        for p in range(phases)
    ]
    assert windows == min(fitting) >= 1
    seen, orders = set(), set()
    text = TrainingWindows(np.zeros(length, np.uint8), 5, windows * 300, context)
    starts = text.starts(0).reshape(300, windows)
    for epoch in starts.tolist():
        phase = min(epoch)
        assert sorted(epoch) == [phase + place * context for place in range(windows)]
        seen.add(phase)
        orders.add(tuple(start - phase for start in epoch))
    assert seen == set(range(phases))
    assert len(orders) >= min(windows, 3)


GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU here")


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=GPU)])
@pytest.mark.parametrize(
    ("dtype", "begin", "rows"),
    [
        (np.uint8, 0, slice(None)),
        (np.uint16, STEPS - 3, slice(2, 5)),
        (np.uint32, 2 * STEPS, slice(7, 8)),
    ],
)
def test_batches_are_the_same_where_the_text_lies_on_a_device(
    device, dtype, begin, rows, tmp_path, monkeypatch
):
    monkeypatch.setattr("data.batches.COPIED", 300)
    numbers = np.random.default_rng(0).integers(60_000, size=1000)
    numbers.astype(dtype).tofile(tmp_path / "tokens")
    tokens = np.memmap(tmp_path / "tokens", dtype, "r")
    needed = len(tokens) * (1 if dtype == np.uint8 else 4)
    resident = on_device(tokens, torch.device(device), max_bytes=needed)
    assert isinstance(resident, torch.Tensor) and resident.nbytes == needed
    assert on_device(tokens, torch.device(device), max_bytes=needed - 1) is tokens
    for end in (None, tokens[:2]):
        windows = TrainingWindows(tokens, 3, 8, 50, end)
        batches = batches_on_device(resident, windows, begin, rows)
        for step, batch in enumerate(islice(batches, STEPS + 5), begin):
            assert batch.dtype == torch.int64
            assert torch.equal(batch.cpu(), train_batch(windows, step, rows)), step


@pytest.mark.parametrize("batch", [1, 7, 24, 60])
def test_batches_of_any_size_are_one_endless_sequence(batch):
    """Of the text at its starts."""
    tokens = np.random.default_rng(0).integers(200, size=500).astype(np.uint8)
    whole = TrainingWindows(tokens, 1, 240, 9).starts(0)
    windows = TrainingWindows(tokens, 1, batch, 9)
    joined = torch.cat([train_batch(windows, step) for step in range(240 // batch)])
    assert joined.dtype == torch.int64
    expected = [tokens[start : start + 10].tolist() for start in whole[: len(joined)]]
    assert joined.tolist() == expected
    rows = [train_batch(windows, 3, slice(row, row + 1)) for row in range(batch)]
    assert torch.equal(torch.cat(rows), train_batch(windows, 3))


def test_starts_are_those_that_were_written_down_once():
    """A change here means that old runs can no longer be resumed exactly."""
    windows = TrainingWindows(np.zeros(1_000_000, np.uint8), 1337, 4, 64)
    assert windows.starts(12).tolist() == [52834, 520482, 558242, 584226]
    windows = TrainingWindows(np.zeros(100, np.uint8), 1337, 12, 16)  # two epochs in a batch
    assert windows.starts(3).tolist() == [60, 12, 76, 44, 74, 58, 42, 26, 10, 73, 41, 57]
    # in documents
    assert epoch_starts_in_circle(100, 1337, 3, 16).tolist() == [81, 24, 53, 67, 96, 10, 39]


@pytest.fixture(params=[[0], [1, 1]], ids=["one token", "two tokens"])
def windows_of_documents(request):
    tokens = np.random.default_rng(1).integers(40, size=3000).astype(np.uint16)
    for place in (0, 50, 51, 53, *range(100, 3000, 70), 2990):
        tokens[place : place + len(request.param)] = request.param
    return TrainingWindows(tokens, 4, 6, 20, np.array(request.param, np.uint16))


def test_windows_of_documents_begin_at_an_end_mark_that_is_close_before(windows_of_documents):
    windows = windows_of_documents
    context, end, whole = windows.context, windows.end.tolist(), windows.tokens.tolist()
    circle = 3 * whole  # the first document follows the last
    count = -(-len(whole) // context)
    epochs = [replace(windows, batch=count).starts(epoch, 1).tolist() for epoch in range(8)]
    moved = 0
    for epoch, starts in enumerate(epochs):
        spread = epoch_starts_in_circle(len(whole), windows.seed, epoch, context).tolist()
        # one window after the other, as far apart as possible
        gaps = np.diff([*sorted(spread), min(spread) + len(whole)])
        assert max(gaps) <= context and max(gaps) - min(gaps) <= 1
        for start, plain in zip(starts, spread, strict=True):
            around = plain + len(whole)
            marks = [
                place % len(whole)
                for place in range(around, around - context // 4, -1)
                if circle[place : place + len(end)] == end
            ]
            assert start == (marks or [plain])[0]
            moved += start != plain
    assert moved > 20
    assert len({tuple(epoch) for epoch in epochs}) == len(epochs)
    rows = train_batch(windows, 11).tolist()
    starts = windows.starts(11).tolist()
    assert rows == [circle[start : start + context + 1] for start in starts]


LENGTHS = [1, 2, 5, 9, 16, 33, 63, 64, 65, 129, 200, 257, 513, 2000]


@pytest.mark.parametrize("context", [64, 256])
@pytest.mark.parametrize("end", [[0], [0, 0]], ids=["one token", "two tokens"])
@pytest.mark.parametrize("length", [*LENGTHS, "any of them"])
def test_each_token_of_a_document_is_read_about_once_an_epoch(length, end, context):
    """By counting, for each token, how often it is a target."""
    if length == "any of them":
        lengths = np.random.default_rng(7).permutation(LENGTHS * 3).tolist()
    else:
        lengths = [length] * max(9, 8 * context // (length + len(end)))
    tokens = np.array([token for size in lengths for token in [1] * size + end], np.uint8)
    count = -(-len(tokens) // context)
    windows = TrainingWindows(tokens, 3, count, context, np.array(end, np.uint8))
    times_read = np.zeros((25, len(tokens)), int)  # by epoch
    for epoch in range(len(times_read)):
        for start in windows.starts(epoch).tolist():
            for target in range(start + 1, start + context + 1):
                times_read[epoch, target % len(tokens)] += 1
    for first in (0, 5):  # of twenty epochs
        mean = times_read[first : first + 20].mean(0)
        assert mean.min() >= 0.7 and mean.max() <= 2
    is_read = times_read > 0
    for epoch in range(len(times_read) - 5):
        assert is_read[epoch : epoch + 5].any(0).all()
