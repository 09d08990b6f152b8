"""Ten errors, word for word, which stand for the others: elsewhere tests check the key, the value and one line."""

import pytest

from tests.conftest import Call

MESSAGES = {
    "train.py model.head=8": "model.head: no such key; nearest: model.heads",
    "train.py model.heads=3": (
        "model.heads=3: must divide model.dim=128; try 1, 2, 4, 8, 16, model.dim=132"
    ),
    "train.py model=bby": (
        "model=bby: must be one of auto, baby, base, mini, nanogpt, small, tiny; nearest: baby"
    ),
    "train.py data.path=boook.txt": (
        "data.path=boook.txt: no such file or directory; nearest: book.txt"
    ),
    "train.py data.split=[0.5,0.6,0.1]": (
        "data.split=[0.5, 0.6, 0.1]: must be three fractions [train,validation,test] that add up "
        "to 1, the first two above 0"
    ),
    "train.py optim.lr=fast": "optim.lr=fast: must be auto or a number, above 0",
    "train.py name=first": (
        "name=first: runs/first exists; name=first resume=auto continues it, another name starts "
        "afresh"
    ),
    "train.py resume=frist": (
        "resume=frist: no such checkpoint, nor a run in runs/; nearest: first"
    ),
    "sample.py --temperature -1": (
        "argument --temperature: -1: must be a number, at least 0 and at most 1000"
    ),
    "sample.py first --prompt 日": (
        "character '日' (U+65E5) at position 0 is not in the vocabulary of this model; --unknown "
        "skip drops it, --unknown replace uses the nearest"
    ),
}


@pytest.mark.usefixtures("trained")
@pytest.mark.parametrize("command", MESSAGES)
def test_an_error_says_what_is_wrong_and_what_is_right(
    command: str, train: Call, sample: Call
) -> None:
    script, *arguments = command.split()
    if script == "train.py":
        ended = train(*arguments, defaults=False)
    else:
        ended = sample(*arguments)
    assert (ended.status, ended.out) == (2, "")
    assert ended.err == f"{script}: {MESSAGES[command]}\n"
