import numpy as np
import pytest

from data import novelty
from data.novelty import longest_copies, repeats
from gpt.tokenizer import CharTokenizer
from tests.reference.ngrams import longest_copy


def check(texts, trained):
    """Each copy is as long as that of the oracle, and is in both texts."""
    found = longest_copies(texts, trained)
    for text, copy in zip(texts, found, strict=True):
        assert copy.length == longest_copy(text.tolist(), trained.tolist())
        passage = text[copy.begin : copy.begin + copy.length]
        assert len(passage) == copy.length == longest_copy(passage.tolist(), trained.tolist())
    assert found == [copy for text in texts for copy in longest_copies([text], trained)]
    return found


@pytest.mark.parametrize("values", [1, 2, 3, 60_000])
@pytest.mark.parametrize("sizes", [(2**12, 2**18), (4, 16), (1, 1)])
def test_copies_are_those_of_the_oracle(sizes, values, monkeypatch):
    monkeypatch.setattr(novelty, "FIRST_CHUNK", sizes[0])
    monkeypatch.setattr(novelty, "CHUNK", sizes[1])
    rng = np.random.default_rng(0)
    trained = rng.integers(0, values, 300).astype(np.uint16)
    texts = [rng.integers(0, values, n) for n in (0, 1, 2, 30, 90)]
    texts += [trained[10:60].copy(), np.concatenate((texts[3], trained[270:], trained[:40]))]
    # longer than the training text
    texts += [np.tile(trained[5:8], 9), np.concatenate((trained, texts[3]))]
    found = check(texts, trained)
    assert found[0] == (0, 0) and found[5] == (0, 50)


@pytest.mark.parametrize("end", ["\n", "\n\n", "\x03"])
def test_repeats_are_whole_documents(end):
    tokenizer = CharTokenizer("\x03\nabcd")
    trained = tokenizer.encode("".join(each + end for each in ("ab", "abc", "", "d\na", "c")))
    known = {
        "ab": True,
        "abc": True,
        "c": True,
        "bc": False,
        "a": end == "\n",
        "": False,
        "cab": False,
    }
    known |= {"d\na": True} if end != "\n" else {}
    found = repeats([tokenizer.encode(each) for each in known], trained, tokenizer.encode(end))
    assert found == list(known.values())
