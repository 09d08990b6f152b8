"""The model for transformers: `AutoModelForCausalLM.from_pretrained(DIR, trust_remote_code=True)`.

`to_hf.py` copies this file and the files that it imports into DIR. Generated text equals that of
`sample.py`.
"""

# mypy: disable-error-code="import-not-found, override, misc"
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel, StoppingCriteria
from transformers.modeling_outputs import CausalLMOutput

from gpt.config import ModelConfig
from gpt.model import GPT


class CharGPTConfig(PretrainedConfig):
    """The contents of config.json: `ModelConfig` as `model_config`, and `end_mark`, the tokens that end a document."""

    model_type = "chargpt"
    end_mark: tuple[int, ...] = ()


class Ended(StoppingCriteria):
    """Stops a text that ends with the tokens `end`, an end mark of several tokens.

    The mark that begins a text has no part in the one that ends it.
    """

    def __init__(self, end: list[int]) -> None:
        # an attribute of this name makes `generate` pad the texts that have ended
        self.end = self.eos_token_id = end

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        """Return (B,) bool for the texts `input_ids`, (B, T): True for each text that ends with `self.end`."""
        n = len(self.end)
        ended: list[bool] = []
        for tokens in input_ids.tolist():
            text = tokens[n:] if tokens[:n] == self.end else tokens
            ended.append(text[-n:] == self.end)
        return torch.tensor(ended, device=input_ids.device)  # (B,)


class CharGPTForCausalLM(PreTrainedModel, GenerationMixin):
    """A `GPT` for transformers, without a KV cache. All texts of a batch must have the same length, without padding."""

    config_class = CharGPTConfig
    # if config.tie_word_embeddings
    _tied_weights_keys = {"net.head.weight": "net.embedding.weight"}
    accepts_loss_kwargs = False  # the loss is a mean over the batch

    def __init__(self, config: CharGPTConfig) -> None:
        super().__init__(config)
        self.shape = ModelConfig(**config.model_config)
        # Without absolute positions the context is a window that slides, in every block, over a
        # text of any length.
        shape = self.shape
        if not shape.absolute:
            shape = replace(shape, context=2**20, window=shape.attention_window)
        self.net = GPT(shape, config.vocab_size)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Leave the weights as `GPT` has initialised them."""

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        **_: Any,
    ) -> CausalLMOutput:
        """Return the logits (B, T, V) and, if `labels` (B, T) are given, their mean loss, which ignores labels -100."""
        if attention_mask is not None and not attention_mask.all():
            raise ValueError(
                "attention_mask: has zeros, but padding is not supported; pass texts of the same length"
            )
        logits = self.net(input_ids)  # (B, T, V)
        if labels is None:
            return CausalLMOutput(logits=logits)
        predictions = logits[:, :-1].flatten(0, 1)  # (B (T - 1), V)
        targets = labels[:, 1:].flatten()  # (B (T - 1),)
        return CausalLMOutput(loss=F.cross_entropy(predictions, targets), logits=logits)

    def generate(
        self, inputs: Any = None, *others: Any, stopping_criteria: Any = (), **options: Any
    ) -> Any:
        """Return the texts `inputs`, (B, T), continued to their end. Without any, start a document."""
        if inputs is None:
            inputs = options.pop("input_ids", None)
        criteria: Any = list(stopping_criteria or ())
        end = list(self.config.end_mark)
        if end:
            if inputs is None:
                inputs = torch.tensor([end], device=self.device)  # (1, tokens of the end mark)
            # an end mark in a prompt is not padding
            options.setdefault("attention_mask", torch.ones_like(inputs))
        if len(end) > 1:
            criteria.append(Ended(end))  # a single token is the eos_token_id
        return super().generate(inputs, *others, stopping_criteria=criteria, **options)

    def prepare_inputs_for_generation(
        self, input_ids: Tensor, attention_mask: Any = None, **_: Any
    ) -> dict[str, Any]:
        """Return the arguments of `forward`: texts (B, T), cropped to those tokens that can influence the next one."""
        start = self.shape.first_needed(input_ids.shape[1])
        return {"input_ids": input_ids[:, start:], "attention_mask": attention_mask}
