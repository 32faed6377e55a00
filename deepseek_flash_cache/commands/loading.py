"""What the commands that run a model share: loading it, and wording a prompt for it."""

from __future__ import annotations

from typing import Any

import torch

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def load_model(name: str, dtype: torch.dtype) -> tuple[Any, Any]:
    """Model and left-padding tokenizer of a Hugging Face folder or id, or of ``smollm2``, on the best device."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, logging

    logging.disable_progress_bar()
    if name == "smollm2":
        from deepseek_flash_cache.models import smollm2

        name = str(smollm2.obtain())
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer = AutoTokenizer.from_pretrained(name, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(name, dtype=dtype, attn_implementation="sdpa")
    return model.to(device).eval(), tokenizer


def chat_text(tokenizer: Any, prompt: str, system: str | None = None) -> str:
    """`prompt` in the model's chat template; as it is if the model has none."""
    if not tokenizer.chat_template:
        return prompt if system is None else f"{system}\n\n{prompt}"
    messages = [] if system is None else [{"role": "system", "content": system}]
    messages.append({"role": "user", "content": prompt})
    text: str = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return text
