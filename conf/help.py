"""The text of `train.py --help`."""

from base.options import allowed, shown
from conf.keys import SEARCH, fields, groups


def usage() -> str:
    """Return the help: every group, and every key with its default, meaning and range."""
    lines = [
        "usage: python train.py [group=choice ...] [key=value ...]",
        "",
        "Train a character-level GPT. Without arguments: a small model on Python's standard library.",
        "  python train.py data.path=book.txt         your own text",
        "  python train.py model.heads=8              more attention heads",
        "  python train.py resume=auto                continue the newest unfinished run",
        "  python train.py init_from=runs/first       start from a trained model",
        "  python train.py -m optim.lr=1e-3,3e-3      a sweep: one run per value, and a table",
        "",
        "groups (named sets of values; single keys override them)",
    ]
    lines += [f"  {name + '=':13}{'|'.join(choices)}" for name, choices in groups().items()]
    section = None
    for key, (hint, field) in (fields() | SEARCH).items():
        if "help" not in field.metadata:
            continue
        group = key.rpartition(".")[0]
        if group != section:
            section = group
            lines += ["", f"{group or 'run'}"]
        default = field.default_factory() if callable(field.default_factory) else field.default
        lines.append(f"  {f'{key}={shown(default)}':34} {field.metadata['help']} ({allowed(hint, field.metadata)})")
    return "\n".join(lines)
