"""Write and read training checkpoints for Lightning."""

from pathlib import Path
from typing import Any

from lightning.pytorch.plugins import TorchCheckpointIO

from gpt.checkpoint import is_finite, read, save, write_model
from training.endings import Diverged


class AtomicCheckpointIO(TorchCheckpointIO):
    """Read and write checkpoints with `gpt.checkpoint`: atomically, and without executing code from the file.

    Lightning writes a temporary file, too, but renames it without flushing it to the disk.
    """

    def __init__(self, resumed: dict[str, Any] | None = None) -> None:
        self.resumed = resumed  # the checkpoint to continue from, which is read already

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write `last.safetensors`, then `checkpoint`; if a value is NaN or infinite, raise `Diverged` before that."""
        if not is_finite(checkpoint):
            raise Diverged(f"step {checkpoint['global_step']} has left weights that are NaN or infinite: not saved")
        write_model(Path(path).with_name("last.safetensors"), checkpoint)
        save(path, checkpoint)

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        contents, self.resumed = self.resumed, None
        return read(path) if contents is None else contents
