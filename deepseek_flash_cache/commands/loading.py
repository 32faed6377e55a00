"""What the commands that run a model share: loading it, and wording a prompt for it."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import torch

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
ACCEPTED = "it must be smollm2, a folder with config.json, or a Hugging Face id"


def load_model(name: str, dtype: torch.dtype) -> tuple[Any, Any]:
    """Model and left-padding tokenizer of a Hugging Face folder or id, or of ``smollm2``, on the best device.

    ValueError in one line if it cannot be loaded.
    """
    if _is_path(name) and not Path(name).expanduser().joinpath("config.json").is_file():
        raise _refusal(name, "there is no config.json in it" if Path(name).is_dir() else "there is no such folder")
    from transformers import AutoModelForCausalLM, AutoTokenizer, logging

    logging.disable_progress_bar()
    source, offline = _source(name)
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, padding_side="left", local_files_only=offline)
        model = AutoModelForCausalLM.from_pretrained(
            source, dtype=dtype, attn_implementation="sdpa", local_files_only=offline
        )
    except Exception as error:  # from OSError to SafetensorError, there is no common class
        away = "it is not in the local cache, and huggingface.co cannot be reached"
        raise _refusal(name, away if offline and source == name else _short(error)) from error
    return model.to("cuda" if torch.cuda.is_available() else "cpu").eval(), tokenizer


def _is_path(name: str) -> bool:
    return name.startswith(("/", ".", "~")) or name.count("/") > 1 or (name != "smollm2" and Path(name).exists())


def _source(name: str) -> tuple[str, bool]:
    """What to give transformers, and whether it need not ask the hub."""
    if name == "smollm2":
        from deepseek_flash_cache.models import smollm2

        return str(smollm2.obtain()), True
    if _is_path(name):
        return str(Path(name).expanduser().resolve()), True
    return name, not _hub_is_reachable()


def _hub_is_reachable() -> bool:
    """One quick look: the hub's own client retries for a minute."""
    hub = urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co")
    if getproxies():
        return True  # only the proxy knows
    try:
        socket.create_connection((hub.hostname, hub.port or 443), timeout=5).close()
    except OSError:
        return False
    return True


def _refusal(name: str, reason: str) -> ValueError:
    return ValueError(f"model: {name!r} cannot be loaded ({reason}); {ACCEPTED}")


def _short(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].strip(" .:")[:150]


def chat_text(tokenizer: Any, prompt: str, system: str | None = None) -> str:
    """`prompt` in the model's chat template; as it is if the model has none."""
    if not tokenizer.chat_template:
        return prompt if system is None else f"{system}\n\n{prompt}"
    messages = [] if system is None else [{"role": "system", "content": system}]
    messages.append({"role": "user", "content": prompt})
    text: str = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return text
