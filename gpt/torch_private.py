"""Private names of torch that the model's code uses, as torch 2.13 has them."""

import torch

# One kernel for many tensors, as torch's own optimizers use. Public functions launch a kernel for each tensor.
foreach_copy_ = torch._foreach_copy_
foreach_lerp_ = torch._foreach_lerp_
foreach_mul_ = torch._foreach_mul_
foreach_sub_ = torch._foreach_sub_
