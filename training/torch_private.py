"""Private functions of torch, as of 2.13."""

from torch.distributed import distributed_c10d

# Public functions set the timeout only when they create a process group, before its processes have met.
set_pg_timeout = distributed_c10d._set_pg_timeout
