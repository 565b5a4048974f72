#!/usr/bin/env python3
"""Golden numbers for the engine's tests, by Hugging Face transformers in float32 from the file's dequantised weights.

    scripts/train/golden.py --model tiny.gguf --corpus corpus.jsonl --out DIR

Writes DIR/golden.json (prompts, their ids, greedy ids, the gap between the two best logits at each step) and
DIR/golden.npz (idsI, posI, logitsI for four sequences; stage.* of layers 0 and 5). engine/testdata holds its output for
the shipped model. Needs PyTorch (a CPU will do) and transformers >= 5.17.
"""
import argparse
import json
import os

import numpy as np
import torch
from transformers.models.gemma4.configuration_gemma4 import Gemma4TextConfig
from transformers.models.gemma4.modeling_gemma4 import Gemma4ForCausalLM

import gguf_file as gguf
from train import PER_LAYER, load_corpus
from vocabulary import SPECIALS, Vocabulary

PROMPTS = ["SQLite: The VACUUM command", "Python: How do I sort a list?", "Rust: What Is Ownership?", "PostgreSQL: CREATE INDEX"]
GREEDY_TOKENS = 48
STAGE_LAYERS, STAGE_TOKENS = (0, 5), 24
LONG_TOKENS = 400
# Positions of the long sequences: starts, both sides of the window's multiples, the end.
POSITIONS = [0, 1, 2, 63, 64, 126, 127, 128, 129, 130, 254, 255, 256, 257, 383, 384]


def config_from(metadata):
    def get(key):
        return metadata["gemma4." + key].value

    local = get("attention.sliding_window_pattern")
    kv_heads = get("attention.head_count_kv")
    return Gemma4TextConfig(
        vocab_size=len(metadata["tokenizer.ggml.tokens"].value), max_position_embeddings=get("context_length"),
        hidden_size=get("embedding_length"), intermediate_size=get("feed_forward_length"), num_hidden_layers=get("block_count"),
        num_attention_heads=get("attention.head_count"), num_key_value_heads=kv_heads[local.index(True)],
        num_global_key_value_heads=kv_heads[local.index(False)], head_dim=get("attention.key_length_swa"),
        global_head_dim=get("attention.key_length"), sliding_window=get("attention.sliding_window"),
        num_experts=get("expert_count"), top_k_experts=get("expert_used_count"),
        moe_intermediate_size=get("expert_feed_forward_length"), rms_norm_eps=1e-6,
        final_logit_softcapping=get("final_logit_softcapping"), hidden_size_per_layer_input=0, num_kv_shared_layers=0,
        attention_k_eq_v=True, enable_moe_block=True, tie_word_embeddings=True, pad_token_id=0, eos_token_id=1, bos_token_id=2)


def load(path, device):
    """(model in float32, vocabulary) from a GGUF written by train.py."""
    metadata, tensors = gguf.read(path)
    weights = {t.name: torch.from_numpy(gguf.dequantise(t)) for t in tensors}
    config = config_from(metadata)
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    model = Gemma4ForCausalLM(config).float().to(device).eval()
    state = {"model.embed_tokens.weight": weights["token_embd.weight"], "lm_head.weight": weights["token_embd.weight"],
             "model.norm.weight": weights["output_norm.weight"]}
    for i in range(config.num_hidden_layers):
        for name, key, _ in PER_LAYER:
            if f"blk.{i}.{name}" in weights:
                state[f"model.layers.{i}.{key}"] = weights[f"blk.{i}.{name}"]
    outcome = model.load_state_dict(state, strict=False)
    missing = [k for k in outcome.missing_keys if "inv_freq" not in k]
    if missing or outcome.unexpected_keys:
        raise SystemExit(f"weights do not cover the model: missing {missing[:4]}, unexpected {outcome.unexpected_keys[:4]}")
    merges = [tuple(m.split(" ", 1)) for m in metadata["tokenizer.ggml.merges"].value]
    return model, Vocabulary(metadata["tokenizer.ggml.tokens"].value, merges)


@torch.no_grad()
def logits_of(model, ids):
    x = torch.tensor([ids], device=next(model.parameters()).device)
    return model(input_ids=x, use_cache=False).logits[0].float()


def greedy(model, ids, count):
    out, gaps, stop = [], [], SPECIALS.index("<turn|>")
    while len(out) < count and (not out or out[-1] != stop):
        best = logits_of(model, ids + out)[-1].topk(2)
        gaps.append(round(float(best.values[0] - best.values[1]), 5))
        out.append(int(best.indices[0]))
    return out, gaps


def stages_of(model, ids):
    """Intermediate tensors by key. q, k and v are after the per-head norm and before RoPE; attn_out is after the output
    projection and before its norm; dense_out and experts_out are before their norms."""
    found, hooks = {}, []

    def watch(name, module, part=0):
        def keep(_module, _inputs, out):
            value = out[part] if isinstance(out, tuple) else out
            found.setdefault(name, value.detach().float().cpu().numpy())
        hooks.append(module.register_forward_hook(keep))

    for i in STAGE_LAYERS:
        layer = model.model.layers[i]
        attention = layer.self_attn
        for name, module, part in [
            ("attn_norm", layer.input_layernorm, 0), ("q_normed", attention.q_norm, 0), ("k_normed", attention.k_norm, 0),
            ("v_normed", attention.v_norm, 0), ("attn_out", attention, 0), ("router_probs", layer.router, 0),
            ("router_weights", layer.router, 1), ("router_ids", layer.router, 2), ("dense_out", layer.mlp, 0),
            ("experts_out", layer.experts, 0), ("layer_out", layer, 0),
        ]:
            watch(f"stage.blk{i}.{name}", module, part)
    logits_of(model, ids)
    for hook in hooks:
        hook.remove()
    return {k: np.ascontiguousarray(v.squeeze(0) if v.ndim > 2 and v.shape[0] == 1 else v, np.float32) for k, v in found.items()}


def main():
    parser = argparse.ArgumentParser(description="golden numbers for the engine's tests")
    parser.add_argument("--model", required=True)
    parser.add_argument("--corpus", required=True, help="the held-out part gives the two long sequences")
    parser.add_argument("--out", required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    model, vocabulary = load(args.model, args.device)

    cases = []
    for prompt in PROMPTS:
        ids = vocabulary.chat_prompt(prompt)
        out, gaps = greedy(model, ids, GREEDY_TOKENS)
        cases.append({"prompt": prompt, "prompt_ids": ids, "greedy_ids": out, "top2_gap": gaps, "text": vocabulary.decode(out)})

    _, held_out = load_corpus(args.corpus)
    longest = sorted(held_out, key=lambda s: -len(s["text"]))
    sequences = [[SPECIALS.index("<bos>")], cases[0]["prompt_ids"] + cases[0]["greedy_ids"]]
    sequences += [vocabulary.encode("<bos>" + longest[i]["text"])[:LONG_TOKENS] for i in (3, 4)]
    arrays = {}
    for i, ids in enumerate(sequences):
        rows = logits_of(model, ids).cpu().numpy()
        wanted = range(len(ids)) if len(ids) < 100 else [p for p in POSITIONS if p < len(ids) - 1] + [len(ids) - 1]
        arrays[f"ids{i}"] = np.array(ids, np.int32)
        arrays[f"pos{i}"] = np.array(list(wanted), np.int32)
        arrays[f"logits{i}"] = rows[arrays[f"pos{i}"]]
    arrays["stage_ids"] = np.array(sequences[1][:STAGE_TOKENS], np.int32)
    arrays.update(stages_of(model, sequences[1][:STAGE_TOKENS]))

    os.makedirs(args.out, exist_ok=True)
    np.savez_compressed(os.path.join(args.out, "golden.npz"), **arrays)
    with open(os.path.join(args.out, "golden.json"), "w") as f:
        json.dump({"cases": cases}, f, ensure_ascii=False, indent=1)
    print(f"golden.npz, golden.json: {len(cases)} prompts, {len(sequences)} sequences, {len(arrays)} arrays")


if __name__ == "__main__":
    main()
