"""Many requests with one system prompt: its blocks are computed once and shared.

    python examples/shared_system_prompt.py [MODEL]

MODEL is `smollm2` (default), a folder or a Hugging Face id of a served model.
"""

import sys

import torch

from deepseek_flash_cache.commands.loading import chat_text, load_model
from deepseek_flash_cache.engines.transformers import ATTENTION_NAME, FlashCache, cache_argument, model_pool

SYSTEM = "You are a helpful assistant who answers briefly and clearly. You give the answer first. " * 6
QUESTIONS = ("What is the capital of France?", "What do bees make?", "What is water made of?")


def main() -> None:
    model, tokenizer = load_model(sys.argv[1] if len(sys.argv) > 1 else "smollm2", torch.float32)
    model.set_attn_implementation(ATTENTION_NAME)
    pool = model_pool(model, num_blocks=64)
    for question in QUESTIONS:
        inputs = tokenizer(chat_text(tokenizer, question, SYSTEM), return_tensors="pt").to(model.device)
        with FlashCache(model.config, pool) as cache:
            hits = cache.adopt_prefix(inputs["input_ids"])
            output = model.generate(**inputs, **cache_argument(model, cache), max_new_tokens=24, do_sample=False)
        prompt_tokens = inputs["input_ids"].shape[1]
        answer = tokenizer.decode(output[0, prompt_tokens:], skip_special_tokens=True).strip()
        print(f"{question}\n  {answer}\n  [{hits} of {prompt_tokens} prompt tokens were there already]")
    pool.blocks.check_idle()


if __name__ == "__main__":
    main()
