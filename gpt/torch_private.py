"""Private names of torch that the model's code uses: seen in torch 2.13."""

import torch

# One kernel for many tensors, as in torch's own optimizers; public functions take a kernel for each tensor.
foreach_copy_ = torch._foreach_copy_
foreach_lerp_ = torch._foreach_lerp_
foreach_mul_ = torch._foreach_mul_
foreach_sub_ = torch._foreach_sub_
