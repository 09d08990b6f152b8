"""Private names of torch that training uses: seen in torch 2.13."""

from torch.distributed import distributed_c10d

# Public functions take a timeout only when a group is made: before its processes have found each other.
set_pg_timeout = distributed_c10d._set_pg_timeout
