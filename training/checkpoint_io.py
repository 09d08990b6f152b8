"""How Lightning writes and reads a training checkpoint."""

from pathlib import Path
from typing import Any

from lightning.fabric.plugins.io.checkpoint_io import CheckpointIO

from gpt.checkpoint import is_finite, read, save, write_model
from training.errors import Diverged


class AtomicCheckpointIO(CheckpointIO):
    """Read and write checkpoints by `gpt.checkpoint`: atomically, and without running code on loading.

    Lightning's own writes a temporary file first, too, but does not flush it to the disk before it renames it.

    Args:
        resumed: the contents of the checkpoint that the run continues from, so that it is read only once.
    """

    def __init__(self, resumed: dict[str, Any] | None = None) -> None:
        self.resumed = resumed

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write the model as `last.safetensors`, then `checkpoint`.

        Raises:
            Diverged: a value is NaN or infinite; nothing is written.
        """
        if not is_finite(checkpoint):
            raise Diverged(f"step {checkpoint['global_step']} has left weights that are NaN or infinite: not saved")
        write_model(Path(path).with_name("last.safetensors"), checkpoint)
        save(path, checkpoint)

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        """Read and verify a checkpoint."""
        contents, self.resumed = self.resumed, None
        return read(path) if contents is None else contents

    def remove_checkpoint(self, path: Any) -> None:
        """Delete a checkpoint."""
        Path(path).unlink(missing_ok=True)
