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


# The sections of `--help=all` with their keys, in order; a name that ends in a dot stands for all
# keys of its group.
SECTIONS = {
    "name, continue, start from a model": "name resume allow init_from seed",
    "text": "data.path data.validation data.test data.split data.documents data.field data.encoding data.tokenizer "
    "data.cache_dir",
    "model": "model.",
    "how long, in which batches": "minutes trainer.max_steps data.batch data.micro_batch",
    "optimizer and learning rate": "optim.",
    "validations, samples, logs, checkpoints": "trainer.val_check_interval data.val_tokens watch. "
    "trainer.log_every_n_steps trainer.checkpoint_minutes",
    "machine": "threads compile trainer.precision trainer.accelerator trainer.devices trainer.num_nodes "
    "trainer.timeout trainer.deterministic trainer.benchmark trainer.more",
    "find faults": "data.overfit trainer.detect_anomaly trainer.profiler",
    "several runs (-m, hparams_search=default)": "workers hparams_search.",
}


def usage(everything: bool) -> str:
    """Return the text of `--help` or, if `everything` is true, of `--help=all`, which lists each key."""
    train = command("python", "train.py")
    lines = [TASKS.replace("python train.py", train)]
    for group, presets in groups().items():
        lines.append(f"  {group + '=':15} {' '.join(presets)}")
    if not everything:
        lines += ["", f"{train} --help=all lists every key with its default, meaning and range"]
        return "\n".join(lines)
    keys = KEYS | SEARCH_KEYS
    for section, names in SECTIONS.items():
        lines += ["", section]
        for name in names.split():
            for key in [key for key in keys if key.startswith(name)]:
                setting = f"{key}={spell(keys[key].default)}"
                lines.append(f"  {setting:34} {keys[key].metadata['help']} ({keys[key].allowed})")
    return "\n".join(lines)
