"""Lightning's CheckpointIO on our checkpoint files: atomic writes, checked reads."""

from pathlib import Path
from typing import Any

from lightning.fabric.plugins.io.checkpoint_io import CheckpointIO

from gpt.checkpoint import is_finite, read, save, write_model
from training.errors import Diverged


class AtomicCheckpointIO(CheckpointIO):
    """Lets Lightning read and write through `gpt.checkpoint`: whole files only, no code run on loading.

    Args:
        resumed: contents of the checkpoint that the run goes on from, which have been read and verified.
    """

    def __init__(self, resumed: dict[str, Any] | None = None) -> None:
        self.resumed = resumed

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write `checkpoint`, and before it its model as `last.safetensors`: each is always a whole file.

        Raises:
            Diverged: not all of it are numbers, so it is not written.
        """
        if not is_finite(checkpoint):
            raise Diverged(f"step {checkpoint['global_step']} has left weights that are no numbers: not saved")
        write_model(Path(path).with_name("last.safetensors"), checkpoint)
        save(path, checkpoint)

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        """Read and verify a checkpoint."""
        contents, self.resumed = self.resumed, None
        return read(path) if contents is None else contents

    def remove_checkpoint(self, path: Any) -> None:
        """Delete a checkpoint."""
        Path(path).unlink(missing_ok=True)
