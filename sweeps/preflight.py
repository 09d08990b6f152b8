"""Check what a trial needs before any trial starts."""

from typing import TYPE_CHECKING

from base import run_directory
from conf.resume import merge_started
from conf.schema import Config
from training.devices import rows_per_device

if TYPE_CHECKING:
    from collections.abc import Sequence


def check_world(config: Config, keys: "Sequence[str]" = ()) -> str | None:
    """See that what a run needs is there and fits: its text, its share of the batch, the model it starts from.

    Returns:
        The fingerprint of the text; None where it depends on the model that the run starts from.

    Raises:
        ValueError: it is not, in one line.
    """
    from data.open_text import open_text
    from data.sources import open_corpus

    if isinstance(config.trainer.devices, int):
        rows_per_device(config, config.trainer.devices)
    if config.init_from is not None:  # which may bring a context of its own
        from gpt import model_file

        model, _, meta = model_file.read(run_directory.find_model(config.init_from))
        merge_started(config, list(keys), vars(model), meta["vocabulary"]["kind"])
        open_corpus(config.data)
        return None
    return open_text(config.data, config.model.context).fingerprint
