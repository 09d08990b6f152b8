"""The text of `train.py --help` and `train.py --help=all`."""

from base.options import spell
from base.processes import command
from conf.keys import KEYS, SEARCH_KEYS, groups

TASKS = """usage: python train.py [group=preset ...] [group.key=value ...]

Train a character-level GPT. Without arguments: a small model on Python's standard library.

  python train.py data.path=book.txt         train on your own text
  python train.py minutes=5                  choose model, batch and steps to end within 5 minutes
  python train.py model.heads=8              change one setting
  python train.py name=first                 name the run directory: runs/first
  python train.py resume=auto                continue the newest unfinished run
  python train.py init_from=first            start from a trained model
  python train.py -m optim.lr=3e-3,6e-3      run every combination, then print a table
  python train.py hparams_search=default     search for settings with Optuna
  python train.py --runs                     list the runs with their losses
  python train.py --runs 'abl-*'             compare these runs, with means over seeds
  python train.py model=small --cfg job      print all settings instead of training
  python train.py debug=overfit              check that the model can memorise a short text

group=preset sets all that conf/<group>/<preset>.yaml contains. These are the presets:"""


def usage(everything: bool) -> str:
    """Return the text of `--help` or, if `everything` is true, of `--help=all`, which lists each key."""
    tasks = TASKS.replace("python train.py", command("python", "train.py"))
    lines = [tasks, *(f"  {name + '=':15} {' '.join(presets)}" for name, presets in groups().items())]
    if not everything:
        more = f"{command('python', 'train.py')} --help=all lists every key with its default, meaning and range"
        return "\n".join([*lines, "", more])
    group = None
    for key, about in (KEYS | SEARCH_KEYS).items():
        if "help" in about.metadata:
            if group != key.rpartition(".")[0]:
                group = key.rpartition(".")[0]
                lines.append("")
            lines.append(f"  {f'{key}={spell(about.default)}':34} {about.metadata['help']} ({about.allowed})")
    return "\n".join(lines)
