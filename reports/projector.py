"""Files of TensorBoard's PROJECTOR: the embedding of each token, with what it stands for beside it."""

from pathlib import Path

from torch import Tensor

from base.files import write_text
from reports.glyphs import kind, visible

CONFIG = """embeddings {
  tensor_name: "embedding"
  tensor_path: "projector/tensors.tsv"
  metadata_path: "projector/metadata.tsv"
}
"""


def write_projector(run: Path, embedding: Tensor, names: list[str], counts: Tensor) -> None:
    """Write what TensorBoard looks for in a run's directory.

    Args:
        run: the directory.
        embedding: (V, C).
        names: each of the V tokens as text.
        counts: (V,) how often each occurs in the text.
    """
    (run / "projector").mkdir(exist_ok=True)
    vectors = ("\t".join(f"{value:.6g}" for value in row) for row in embedding.tolist())
    write_text(run / "projector" / "tensors.tsv", "\n".join(vectors) + "\n")
    rows = ["character\tcode point\tkind\tper thousand"]
    for name, share in zip(names, (1000 * counts / counts.sum()).tolist(), strict=True):
        code = f"U+{ord(name):04X}" if len(name) == 1 else name
        rows.append(f"{visible(name)}\t{code}\t{kind(name)}\t{share:.3f}")
    write_text(run / "projector" / "metadata.tsv", "\n".join(rows) + "\n")
    write_text(run / "projector_config.pbtxt", CONFIG)
