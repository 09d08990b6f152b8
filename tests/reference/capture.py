"""What `training.captured_step.capture` promises, on a CPU: operations at fixed addresses, done again without Python.

It is stricter than a GPU: what a GPU would do wrongly (a number that was read while recording and is old when
repeated) shows in the result, and what a GPU refuses (looking at a tensor, shapes that depend on values) is refused;
`tolist` and `numpy` alone pass unseen.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

LOOKS = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "item", "equal", "is_nonzero")


class _Recorder(TorchDispatchMode):
    """Keeps each operation with the very tensors that it was given and that came of it."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, tuple, dict, list[torch.Tensor]]] = []
        self.own: set[int] = set()  # storages made while recording
        self.before: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}  # others, and what they held

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        name = func.__name__.split(".")[0]
        if name.startswith(LOOKS):
            raise AssertionError(f"{name} looks at a tensor while work is recorded")
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if name in ("index", "index_put_") and any(tensor.dtype == torch.bool for tensor in given[1:]):
            raise AssertionError(f"{name} by truth values has a shape that depends on them")
        if func._schema.is_mutable:
            for storage in (tensor.untyped_storage() for tensor in given):
                if storage._cdata not in self.own and storage._cdata not in self.before:
                    self.before[storage._cdata] = storage, storage.clone()
        result = func(*args, **kwargs)
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        storages = {tensor.untyped_storage()._cdata for tensor in given}
        fresh = [tensor for tensor in made if tensor.untyped_storage()._cdata not in storages]
        self.own |= {tensor.untyped_storage()._cdata for tensor in fresh}
        if fresh or not made or func._schema.is_mutable:  # a view stays what it is
            self.operations.append((func, args, kwargs, made if fresh else []))
        return result


def record(work: Callable[[], None]) -> Callable[[], None]:
    """Record `work`, and undo what doing it has changed: recording does nothing."""
    recorder, random = _Recorder(), torch.get_rng_state()
    torch.clear_autocast_cache()
    with recorder:
        work()
    torch.clear_autocast_cache()
    for storage, before in recorder.before.values():
        storage.copy_(before)
    torch.set_rng_state(random)

    @torch.no_grad()
    def again() -> None:
        for func, args, kwargs, made in recorder.operations:
            result = [leaf for leaf in tree_leaves(func(*args, **kwargs)) if isinstance(leaf, torch.Tensor)]
            for old, new in zip(made, result, strict=bool(made)):
                if old is not new:
                    old.detach().copy_(new)

    return again
