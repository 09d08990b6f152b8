"""Write text with a trained model: `python sample.py`, or `python sample.py CHECKPOINT --prompt "def "`."""

import argparse
import codecs
import io
import secrets
import sys
from pathlib import Path

from conf.commandline import Parser, answer, device, number, refuse, to_device
from gpt import runs


def cli(arguments: list[str] | None = None) -> int:
    """Run from the command line; what a person typed wrong is answered in one line with exit status 2."""
    options = parse(arguments)
    try:
        checkpoint = runs.find_checkpoint(options.checkpoint)
    except runs.RunError as error:
        return refuse("sample.py", error)
    given = f"--num-samples {options.num_samples} of --num-chars {options.num_chars}"
    too_much = f"{given} are too many at once; lower one of them"
    return answer("sample.py", lambda: sample(checkpoint, options), out_of_memory=too_much)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = Parser(prog="sample.py", description="Write text with a trained model.", allow_abbrev=False)
    parser.add_argument(
        "checkpoint", nargs="?", help="checkpoint, run directory or name of a run (default: the newest)"
    )
    parser.add_argument("--prompt", metavar="TEXT", help="text to go on from (default: a line break)")
    chars, samples = number(int, 0, 10**9), number(int, 1, 10_000)
    heat, most = number(float, 0, 1000), number(int, 1, 2**31)
    seed = number(int, 0, 2**63 - 1)
    add = parser.add_argument
    add("--num-chars", type=chars, default=500, metavar="N", help="length (default 500)")
    add("--num-samples", type=samples, default=1, metavar="N", help="how many (default 1)")
    add("--temperature", type=heat, default=0.8, metavar="T", help="0 is greedy (default 0.8)")
    add("--top-k", type=most, metavar="K", help="draw from the K most likely characters (default: all)")
    add("--seed", type=seed, metavar="N", help="the same seed writes the same text")
    add("--device", type=device, default="cpu", metavar="D", help="cpu, cuda, cuda:1, mps (default cpu)")
    return parser.parse_args(arguments)


def sample(checkpoint: Path, options: argparse.Namespace) -> None:
    """Load a checkpoint and print text: one sample as it is drawn, several one below the other."""
    import torch

    from data.tokenizer import tokenizer_from
    from gpt.checkpoint import load_checkpoint
    from gpt.generate import generate, stream

    model, meta = load_checkpoint(checkpoint)
    tokenizer = tokenizer_from(meta["vocabulary"])
    characters = meta["vocabulary"].get("characters", "\n")
    start = "\n" if "\n" in characters else characters[0]
    prompt = torch.from_numpy(tokenizer.encode(options.prompt or start)).expand(options.num_samples, -1)
    to_device(model, options.device)

    seed = secrets.randbits(32) if options.seed is None else options.seed
    drawing = {"temperature": options.temperature, "top_k": options.top_k, "seed": seed}
    print(f"{checkpoint}, step {meta['global_step']}, --seed {seed}", file=sys.stderr)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    if options.num_samples > 1:
        for number, tokens in enumerate(generate(model, prompt, options.num_chars, **drawing), start=1):
            print(f"--- {number}\n{tokenizer.decode((tokens if options.prompt else tokens[1:]).numpy())}")
        return
    print(options.prompt or "", end="", flush=True)
    # A character of several bytes is shown once its last byte is there.
    utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
    whole_bytes = meta["vocabulary"]["kind"] == "byte"
    for token in stream(model, prompt, options.num_chars, **drawing):
        text = utf8.decode(bytes(token.tolist())) if whole_bytes else tokenizer.decode(token.numpy())
        print(text, end="", flush=True)
    print()


if __name__ == "__main__":
    sys.exit(cli())
