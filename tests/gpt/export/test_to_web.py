"""The page that holds a model, in headless Chromium without a network, against NumPy in float64."""

import math
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch

from gpt.export.to_web import write as write_page
from gpt.tokenizer import ByteTokenizer, CharTokenizer
from tests.conftest import pages
from tests.model_files import about, filled
from tests.reference import model as naive
from tests.reference import sampling
from tests.reference.attention import softmax
from tests.reference.losses import surprisal
from tests.reference.models import ALL, CHOICES, name, tiny
from tests.reports.test_run_page import report
from tests.test_score import contrasts

CHARACTERS = "\n aebcd.é😀"
PHONE = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}
pytestmark = pytest.mark.slow
ALL_BEFORE = {"key_offset": True, "token_shift": True, "heads": 3}
SLIDING = tiny(**ALL_BEFORE, conv_taps=4, positions="rotary", qk_norm=True)
RENEWED = tiny(**ALL_BEFORE, conv_taps=3, positions="learned", tied=True, bias=True)
# Keys are kept for three windows: for nine places, and for six of the seven of the context.
WINDOWED = tiny(**ALL_BEFORE, positions="none", window=3)
WINDOWED_RENEWED = tiny(**ALL_BEFORE, positions="sinusoidal", window=2)


def make(config, characters=CHARACTERS):
    """A filled model, whose weights bf16 holds exactly, and its tokenizer; of bytes without `characters`."""
    tokenizer = CharTokenizer(characters) if characters else ByteTokenizer()
    return filled(config, tokenizer.size).bfloat16().float(), tokenizer


def write_model_page(path):
    model, tokenizer = make(SLIDING)
    write_page(model, about(SLIDING, tokenizer.vocabulary), path)


STATUS = "document.querySelector('#status').textContent"


@pytest.fixture
def show(browser, tmp_path):
    with pages(browser) as open_file:

        def open_page(model, tokenizer, *passages, title=None, end=None, phone=None, **changes):
            meta = about(model.config, tokenizer.vocabulary, **changes)
            if end:
                meta["documents"] = {"kind": "line", "end": end, "name": ""}
            write_page(model, meta, tmp_path / "model.html", *passages, title=title)
            options = {"ready": "#clear:enabled", "reduced_motion": "reduce"} | (phone or {})
            page = open_file(tmp_path / "model.html", **options)
            until(page, f"{STATUS} === 'Written by this model, seed 1'")
            assert page.evaluate("chargpt.model.tokens.length") == len(end or " ") + 300
            page.click("#settings summary")
            page.click("#clear")
            return page

        yield open_page


def fill(page, **fields):
    for key, value in fields.items():
        page.fill(f"#{key.replace('_', '-')}", str(value))


def write(page, prompt, **settings):
    fill(page, prompt=prompt, **settings)
    page.click("#generate")
    return written(page)


def written(page):
    """The text once it is written: the page then says how fast that was, and nothing from Generate on until then."""
    until(page, f"{STATUS}.endsWith(' a second')")
    return page.text_content("#text")


def until(page, condition):
    """Wait; the browser's own way to wait for a condition is code that the page does not let run."""
    for _ in range(3000):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(10)
    raise AssertionError(condition)


def read(model, tokens):
    """By NumPy: logits (T, V) after each token, where the last window begins, attention in it, (n, n) of each head."""
    # that of torch in fp32
    return naive.text(model.state_dict(), model.config, tokens, eps=2**-23)


def random_tokens(model, count):
    generator = torch.manual_seed(1)
    return torch.randint(model.vocabulary, (count,), generator=generator).tolist()


LOGITS = """([config, vocabulary, weights, tokens]) => {
  for (const name in weights) weights[name] = Float32Array.from(weights[name]);
  const model = new GPT(config, vocabulary, weights);
  return tokens.map((token) => (model.read(token), Array.from(model.predict())));
}"""


def test_logits_are_those_of_the_model(show):
    short = [
        tiny(**ALL_BEFORE, positions=positions, context=context, conv_taps=4)
        for positions in CHOICES["positions"] for context in (1, 2)
    ]  # fmt: skip
    page = show(*make(tiny()))
    for config in ALL + short:
        model, _ = make(config)
        tokens = random_tokens(model, 3 * config.context + 20)
        weights = {key: value.flatten().tolist() for key, value in model.named_parameters()}
        logits = page.evaluate(LOGITS, [vars(config), model.vocabulary, weights, tokens])
        np.testing.assert_allclose(
            logits, read(model, tokens)[0], rtol=1e-5, atol=1e-5, err_msg=str(config)
        )


def test_weights_in_two_bytes(show):
    """An odd number of weights, some of them halfway between two numbers of bf16."""
    model, tokenizer = make(tiny(dim=15, heads=3, positions="none"))
    for each in model.parameters():
        bits = each.data.view(torch.int32)
        bits[..., ::3] = bits[..., ::3] & ~0xFFFF | 0x8000
    assert model.num_parameters() % 2
    near = deepcopy(model).bfloat16().float()
    tokens = random_tokens(model, 60)
    page = show(model, tokenizer)
    logits = page.evaluate("tokens => chargpt.logits(tokens)", tokens)
    np.testing.assert_allclose(logits, read(near, tokens)[0], rtol=1e-5, atol=1e-5)
    assert np.abs(logits - read(model, tokens)[0]).max() > 1e-4


def test_greedy_text_is_that_of_the_model(show):
    """Far beyond the context; an empty prompt is a line break, which is not part of the text."""
    model, tokenizer = make(SLIDING)
    page = show(model, tokenizer)
    for prompt, length in (("a dead bee", 200), ("", 30)):
        text = write(page, prompt, length=length, temperature=0)
        tokens = tokenizer.encode(text if prompt else "\n" + text).tolist()
        assert len(text) == len(prompt) + length and text.startswith(prompt)
        assert tokens[-length:] == read(model, tokens)[0][-length - 1 : -1].argmax(-1).tolist()
        assert "".join(page.locator("#text .prompt").all_text_contents()) == prompt


def test_characters_are_drawn_by_their_probabilities(show):
    model, tokenizer = make(tiny(context=1))
    text = write(show(model, tokenizer), "a", length=8000, temperature=0.6, top_k=4, seed=7)
    tokens = tokenizer.encode(text)
    logits, *_ = read(model, list(range(model.vocabulary)))  # (V, V): each token is a context
    counted = np.zeros_like(logits)
    np.add.at(counted, (tokens[:-1], tokens[1:]), 1)
    for row, drawn in zip(logits, counted, strict=True):
        expected = sampling.probabilities(row, 0.6, 4) * drawn.sum()
        assert not drawn[expected == 0].any()
        assert (np.abs(drawn - expected) <= 5 * np.sqrt(expected) + 1).all()


def test_a_seed_is_a_text_in_one_go_or_in_several(show):
    page = show(*make(SLIDING))
    whole = write(page, "abc", length=60, seed=3)
    assert write(page, "abc", length=20, seed=4) != whole[:23]
    fill(page, seed=3)
    page.press("#seed", "Control+Enter")
    assert written(page) == whole[:23]
    page.click("#continue")
    assert written(page) == whole[:43]
    page.click("#dice")
    assert written(page) != whole[:23] and page.input_value("#seed") != "3"


def test_a_text_can_be_stopped_by_a_click_or_another_prompt(show):
    page = show(*make(SLIDING))
    for click in (True, False):
        fill(page, prompt="bad", length=100000)
        page.click("#generate")
        until(page, "chargpt.model.tokens.length > 500")
        assert page.text_content("#generate") == "Stop"
        if click:
            page.click("#generate")
            text = written(page)
            page.wait_for_timeout(100)
            assert 500 < len(text) < 90_000 and page.text_content("#text") == text
    page.fill("#prompt", "bee")
    until(page, "chargpt.model.tokens.length === 3")
    assert page.text_content("#text") == "bee" and page.text_content("#generate") == "Generate"


def test_documents_begin_after_a_hidden_end_mark_and_end_visibly(show):
    end = "\x03"
    model, tokenizer = make(SLIDING, CHARACTERS + end)
    page = show(model, tokenizer, end=end)
    for prompt in ("bad", ""):
        text = write(page, prompt, length=100, temperature=2)
        assert page.evaluate("chargpt.model.tokens") == tokenizer.encode(end + text).tolist()
        assert text.startswith(prompt) and len(text) == len(prompt) + 100
        sizes = "all => all.map((i) => [i.offsetWidth, i.offsetHeight])"
        ends = page.locator("#text i.end").evaluate_all(sizes)
        assert len(ends) == text.count(end) > 1
        assert all(width > 200 and height == 1 for width, height in ends)


def test_bytes_are_written_and_shown_as_characters(show):
    model, tokenizer = make(tiny(token_shift=True), None)
    page = show(model, tokenizer)
    prompt = "\ufeffἄειδε 😀 né"
    page.fill("#prompt", prompt)
    until(page, f"chargpt.model.tokens.length === {len(prompt.encode())}")
    assert page.text_content("#text") == prompt
    text = write(page, prompt, length=150, temperature=2)
    tokens = page.evaluate("chargpt.model.tokens")
    assert bytes(tokens).decode(errors="replace") == text
    assert len(tokens) == 150 + len(prompt.encode())


BARS = """all => all.map(({ children: [name, bar, share] }) => [
  name.textContent, Number(bar.style.getPropertyValue("--share")), share.textContent,
])"""


def test_bars_are_the_probabilities(show):
    model, tokenizer = make(SLIDING, CHARACTERS + "\t\u0301\u00adxyzw")
    called = {
        "\n": "newline",
        " ": "space",
        "\t": "tab",
        "\u0301": "\u25cc\u0301",
        "\u00ad": "U+00AD",
    }
    page = show(model, tokenizer)
    page.fill("#prompt", "bee")
    for temperature, top_k in ((0.5, ""), (0.5, 3)):
        fill(page, temperature=temperature, top_k=top_k)
        text = page.text_content("#text")
        logits = read(model, tokenizer.encode(text).tolist())[0][-1]
        shares = sampling.probabilities(logits, temperature, top_k or None)
        likeliest = np.argsort(-shares, kind="stable")[:12]
        bars = page.eval_on_selector_all("#bars button", BARS)
        names, lengths, percents = zip(*bars, strict=True)
        letters = [tokenizer.decode([token]) for token in likeliest]
        assert list(names) == [called.get(letter, letter) for letter in letters]
        assert lengths == pytest.approx(shares[likeliest], rel=1e-4)
        others = page.text_content("#others").split(": ")[1]
        shown = [float(percent.strip("< %")) for percent in (*percents, others)]
        rest = 1 - shares[likeliest].sum()
        assert shown == pytest.approx(
            [100 * share for share in (*shares[likeliest], rest)], abs=0.11
        )
        page.locator("#bars button").nth(2).click()
        assert page.text_content("#text") == text + letters[2]


# How dark the last characters of the text are, of the largest weight.
SHADES = "[...document.querySelectorAll('#text i')].map((i) => Number(i.style.getPropertyValue('--share')) || 0)"


@pytest.mark.parametrize("config", [SLIDING, RENEWED, WINDOWED, WINDOWED_RENEWED], ids=name)
def test_attention_is_that_of_the_model(show, config):
    """Of the last characters, those that attention sees; what the page has forgotten is not invented."""
    model, tokenizer = make(config)
    page = show(model, tokenizer)
    for length in (3, 62):
        text = write(page, "bad", length=length, temperature=2)
        _, start, seen = read(model, tokenizer.encode(text).tolist())
        for back, layer in ((0, 0), (2, 1)):
            place = len(text) - 1 - back
            page.locator("#text i").nth(place).hover()
            page.select_option("#layer", index=layer)
            for head in range(config.heads):
                page.select_option("#head", index=head)
                shares = seen[layer * config.heads + head][place - start]
                row = np.concatenate([np.zeros(start), shares])
                np.testing.assert_allclose(page.evaluate(SHADES), row / row.max(), atol=0.006)
                *_, percent, sign = page.text_content("#looking").split(" ")
                assert float(percent) == pytest.approx(100 * row.max(), abs=0.051) and sign == "%"
    known = page.evaluate(
        "chargpt.model.tokens.map((_, place) => Boolean(chargpt.model.attention(1, 2, place)))"
    )
    assert known == sorted(known) and len(text) > sum(known) >= (config.window or 1)


def test_arrow_keys_choose_the_character_whose_attention_is_shown(show):
    page = show(*make(SLIDING))
    page.fill("#prompt", "bad")
    page.focus("#text")
    for key, character in (("ArrowLeft", "a"), ("ArrowRight", "d")):
        page.press("#text", key)
        assert page.text_content("#looking").startswith(f"“{character}” looks most at “")
        assert page.text_content("#text .looked") == character


def test_unknown_characters_are_named_and_left_out_but_a_canonically_equal_one_is_taken(show):
    page = show(*make(SLIDING, "badéóe\u0301 "))
    page.fill("#prompt", "o\u0301 e\u0301")
    assert not page.is_visible("#unknown") and page.text_content("#text") == "ó e\u0301"
    page.fill("#prompt", "baZ🤖d\u200bZ")
    assert page.is_visible("#unknown")
    assert page.text_content("#unknown").endswith(": Z, 🤖, U+200B")
    assert page.text_content("#text") == "bad"


def test_names_and_vocabularies_that_look_like_html(show):
    model, tokenizer = make(tiny(), "</script><!--&\"'\\`$\u2028\u2029\x00{}]\n")
    markup = "</script /><!--<script ></script><script>window.harm = 1</script><img src=x onerror=harm()>"
    text_name = f"{markup}&amp; ${{style}} $style {{{{style}}}}"
    page = show(model, tokenizer, text=text_name, val_loss=1.25)
    weights = f"{model.num_parameters():,} weights"
    trained = f"trained for 17 steps on {text_name}"
    loss = "1.25 nats per character on held-out text"
    assert page.text_content("#about") == f"A GPT with {weights}, {trained}; {loss}"
    assert page.text_content("#facts") == (
        "2 layers, 2 heads, 12 wide · context 7 · 24 characters · "
        "validation loss 1.2500 nats (1.8034 bits) per character"
    )
    text = write(page, "</script>\u2028<!--", length=300, temperature=2)
    assert len(text) == 314 and set(text) <= set(tokenizer.characters)
    assert page.evaluate("window.harm") is None
    assert page.text_content("#name") == text_name == page.title().removesuffix(" · chargpt")


@pytest.mark.parametrize(
    "kind", ["model", "report"]
)  # the page of score.py has the report's layout
def test_nothing_but_its_own_script_and_style(kind, browser, workplace):
    if kind == "model":
        write_model_page(Path("page.html"))
    else:
        report(file="page.html")
    page = browser.new_context(offline=True).new_page()
    page.goto((workplace / "page.html").as_uri())
    failures, refused = [], []
    page.on("requestfailed", lambda request: failures.append(request.failure))
    page.on("console", lambda message: refused.append(message.text))
    page.evaluate(
        """() => {
          const script = document.createElement("script");
          script.textContent = "window.harm = 1";
          document.body.append(script);
          document.body.insertAdjacentHTML(
            "beforeend", "<p id=harm style='color: red'><img src=https://example.com onerror='harm = 1'>");
          return fetch("https://example.com").catch(() => 0);
        }"""
    )
    assert page.evaluate("window.harm.tagName") == "P", "the script has not run"
    assert set(failures) == {"csp"}, "not for want of a network"
    colour = page.eval_on_selector("#harm", "harm => getComputedStyle(harm).color")
    assert colour != "rgb(255, 0, 0)"
    assert len(refused) >= 4
    assert all("Content Security Policy" in each for each in refused), refused
    page.context.close()


def test_all_text_is_legible_on_a_phone_too(show):
    page = show(*make(SLIDING))
    write(page, "é bad\nZ", length=300)
    darken = "all => all.forEach(each => each.style.setProperty('--share', 1))"
    page.eval_on_selector_all("#text i:nth-child(odd)", darken)
    for scheme, width in (("light", 360), ("dark", 1280)):
        page.set_viewport_size({"width": width, "height": 800})
        page.emulate_media(color_scheme=scheme)
        contrasts(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_on_first_sight_a_text_is_being_written(browser, tmp_path):
    write_model_page(tmp_path / "model.html")
    with pages(browser) as open_file:
        page = open_file(tmp_path / "model.html", ready="#clear:enabled")
        until(page, "text.textContent.length >= 20")
        assert len(page.text_content("#text")) < 60 and page.text_content("#generate") == "Stop"
        page.click("#generate")
        assert page.text_content("#status") == "Written by this model, seed 1"


def passage(seed):
    return "".join(np.random.default_rng(seed).choice(list(CHARACTERS), 200))


BOUNDS = "needed => shannonBounds(needed, 4)"


def test_shannon_bounds(show):
    """Equation 17 of his paper: sum_i i (q_i - q_(i+1)) log2 i <= H <= -sum_i q_i log2 q_i, q_i sorted.

    A miss is the sixth guess below, and evenly any of the four characters above.
    """
    page = show(*make(tiny()))
    for needed, lower, upper in (([1, 2, 2, 1], 1, 1), ([2, 1, 6, 2], 0.75 * math.log2(3), 2)):
        assert page.evaluate(BOUNDS, needed) == pytest.approx([lower, upper])


def test_the_game_is_played_to_its_end(show):
    """On a phone, by its keyboard and by the buttons; of documents, the model reads their end mark first."""
    end = "\n\n"
    model, tokenizer = make(SLIDING)
    text = passage(0)
    page = show(model, tokenizer, [text, passage(1)], end=end, phone=PHONE)
    tokens = tokenizer.encode(end + text).tolist()
    logits, you, them, nats = read(model, tokens)[0], [], [], []
    fill(page, temperature=0.3, top_k=2)  # of the writing part: the game has its own
    page.focus("#typed")
    for at in range(100, 140):
        assert page.is_disabled("#finish")
        letters = [each for each in sorted(set(CHARACTERS) - {text[at]}) if not each.isspace()]
        wrong = letters[: at % 6]
        for letter in wrong:
            page.keyboard.insert_text(letter)
        if len(wrong) < 5:
            assert page.text_content("#tried") == "".join(wrong)
            if text[at].isspace():
                page.tap("#space" if text[at] == " " else "#enter")
            else:
                page.keyboard.insert_text(text[at])
        row = logits[len(end) + at - 1]
        target = tokens[len(end) + at]
        rank = int((row > row[target]).sum()) + 1
        you.append(len(wrong) + 1)
        them.append(min(rank, 6))
        nats.append(surprisal(row.tolist(), target))
    shares = "all => all.map((bar) => Number(bar.style.getPropertyValue('--share')))"
    shown = page.eval_on_selector_all("#model-bars .bar", shares)
    assert shown == pytest.approx(np.sort(softmax(row))[::-1][:5], rel=1e-4)
    assert f"its guess {rank}." in page.text_content("#compared")
    assert page.text_content("#progress") == "40 of 100"
    for id, needed in (("you", you), ("them", them)):
        lower, upper = page.evaluate(BOUNDS.replace("4", "size"), needed)
        assert page.text_content(f"#{id}-bits") == f"{lower:.2f} to {upper:.2f}"
    exact = float(page.text_content("#exact"))
    assert exact == pytest.approx(np.mean(nats) / math.log(2), abs=0.0051)
    page.click("#finish")
    first = [each.count(1) for each in (you, them)]
    counted = "You guessed {} of 40 characters on the first try, the model {}.".format(*first)
    assert page.text_content("#meaning").startswith(counted)
    page.click("#again")
    for _ in range(40):
        page.press("#typed", "Escape")  # shows the character
    page.click("#finish")
    assert page.text_content("#meaning").startswith("You guessed 0 of 40 ")
    page.click("#again")  # after the last passage the first
    assert page.evaluate("passage.join('')") == text
    assert page.evaluate("document.activeElement.id") == "typed"


def test_why_there_is_no_game_and_without_a_text_only_a_title(show):
    for why, characters in (("byte", None), ("no passage", CHARACTERS)):
        said = show(*make(tiny(), characters), []).inner_text("#game")
        assert "no game" in said and why in said
    page = show(*make(tiny()), title="My <words>")
    assert not page.is_visible("#game") and not page.is_visible("#to-game")
    assert page.inner_text("h1") == "My <words>" and page.title() == "My <words> · chargpt"
