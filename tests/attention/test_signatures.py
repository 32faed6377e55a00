"""Parameter lists equal to flash-attention's, name by name, in order, with its defaults (design notes, section 3.4)."""

import inspect

import pytest
import torch

from deepseek_flash_cache.attention import fa2, fa3, vllm

TAIL = "softmax_scale=None causal=False window_size=(-1,-1) softcap=0.0 alibi_slopes=None deterministic=False"
TAIL2 = f"dropout_p=0.0 {TAIL} return_attn_probs=False"
RAGGED = "cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k"
DESCALES = "q_descale=None k_descale=None v_descale=None"
PLANNED = "num_splits=1 pack_gqa=None deterministic=False sm_margin=0 return_attn_probs=False"
MIDDLE3 = f"{DESCALES} window_size=(-1,-1) attention_chunk=0 softcap=0.0"

SIGNATURES = {
    "fa2.flash_attn_func": f"q k v {TAIL2}",
    "fa2.flash_attn_kvpacked_func": f"q kv {TAIL2}",
    "fa2.flash_attn_qkvpacked_func": f"qkv {TAIL2}",
    "fa2.flash_attn_varlen_func": f"q k v {RAGGED} {TAIL2} block_table=None",
    "fa2.flash_attn_varlen_kvpacked_func": f"q kv {RAGGED} {TAIL2}",
    "fa2.flash_attn_varlen_qkvpacked_func": f"qkv cu_seqlens max_seqlen {TAIL2}",
    "fa2.flash_attn_with_kvcache": (
        "q k_cache v_cache k=None v=None rotary_cos=None rotary_sin=None cache_seqlens=None cache_batch_idx=None"
        " cache_leftpad=None block_table=None softmax_scale=None causal=False window_size=(-1,-1) softcap=0.0"
        " rotary_interleaved=True alibi_slopes=None num_splits=0 return_softmax_lse=False"
    ),
    "fa3.flash_attn_func": f"q k v softmax_scale=None causal=False qv=None {MIDDLE3} {PLANNED}",
    "fa3.flash_attn_qkvpacked_func": (
        f"qkv softmax_scale=None causal=False {MIDDLE3} deterministic=False num_heads_q=None sm_margin=0"
        " return_attn_probs=False"
    ),
    "fa3.flash_attn_varlen_func": (
        f"q k v {RAGGED} seqused_q=None seqused_k=None softmax_scale=None causal=False qv=None {MIDDLE3} {PLANNED}"
    ),
    "fa3.flash_attn_with_kvcache": (
        "q k_cache v_cache k=None v=None qv=None rotary_cos=None rotary_sin=None cache_seqlens=None"
        " cache_batch_idx=None cache_leftpad=None page_table=None cu_seqlens_q=None cu_seqlens_k_new=None"
        f" max_seqlen_q=None rotary_seqlens=None {DESCALES} softmax_scale=None causal=False window_size=(-1,-1)"
        " attention_chunk=0 softcap=0.0 rotary_interleaved=True scheduler_metadata=None num_splits=0 pack_gqa=None"
        " sm_margin=0 return_softmax_lse=False"
    ),
    "fa3.get_scheduler_metadata": (
        "batch_size max_seqlen_q max_seqlen_k num_heads_q num_heads_kv headdim cache_seqlens qkv_dtype=torch.bfloat16"
        " headdim_v=None cu_seqlens_q=None cu_seqlens_k_new=None cache_leftpad=None page_size=None max_seqlen_k_new=0"
        " causal=False window_size=(-1,-1) attention_chunk=0 has_softcap=False num_splits=0 pack_gqa=None sm_margin=0"
    ),
    "vllm.flash_attn_varlen_func": (
        "q k v max_seqlen_q cu_seqlens_q max_seqlen_k cu_seqlens_k=None seqused_k=None q_v=None dropout_p=0.0"
        " softmax_scale=None causal=False window_size=None softcap=0.0 alibi_slopes=None deterministic=False"
        " return_attn_probs=False block_table=None return_softmax_lse=False out=None scheduler_metadata=None"
        f" {DESCALES} num_splits=0 output_scale=None fa_version=2 s_aux=None cp_world_size=1 cp_rank=0"
        " cp_tot_seqused_k=None mask_mod=None"
    ),
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_parameters(name):
    module, function = name.split(".")
    parameters = inspect.signature(getattr({"fa2": fa2, "fa3": fa3, "vllm": vllm}[module], function)).parameters
    shown = [
        p.name if p.default is inspect.Parameter.empty else f"{p.name}={p.default}".replace(", ", ",")
        for p in parameters.values()
    ]
    assert shown == SIGNATURES[name].split()


def test_scheduler_metadata_is_nothing_and_is_accepted():
    metadata = fa3.get_scheduler_metadata(1, 1, 8, 2, 1, 64, torch.tensor([8]).int())
    q, cache = torch.randn(1, 1, 2, 64), torch.randn(1, 8, 1, 64)
    plain = fa3.flash_attn_with_kvcache(q, cache, cache, cache_seqlens=8)
    planned = fa3.flash_attn_with_kvcache(
        q, cache, cache, cache_seqlens=8, scheduler_metadata=metadata, num_splits=7, pack_gqa=True, sm_margin=3
    )
    assert torch.equal(plain, planned)
