#!/usr/bin/env python3
"""Trains the tiny Gemma-4-architecture MoE with the Hugging Face implementation and writes it as GGUF.

    scripts/train/train.py --corpus corpus.jsonl --out tiny-gemma4-moe-q4_0.gguf [--minutes 7]

Needs a GPU, PyTorch and transformers >= 5.17. Training is bfloat16 on one device and stops by the clock, so two runs
give two different models of the same kind; the shipped file is one of them (engine/models/README.md).
"""
import argparse
import json
import math
import random
import time

import numpy as np
import torch
import torch.nn.functional as F
from transformers.models.gemma4.configuration_gemma4 import Gemma4TextConfig
from transformers.models.gemma4.modeling_gemma4 import Gemma4ForCausalLM, Gemma4TextRouter

import gguf_file as gguf
from vocabulary import SPECIALS, Vocabulary, learn, token_types

VOCABULARY, CONTEXT, SEQUENCE = 4096, 8192, 1024
HELD_OUT = 700            # sections; golden.py and the perplexity quoted in the model's README use them
LONGEST_TEXT = 6000       # characters of a section
LOAD_BALANCE = 0.003      # weight of the load-balancing loss: without it a few experts take everything
GEOMETRY = dict(hidden_size=256, intermediate_size=256, num_hidden_layers=12, num_attention_heads=4, num_key_value_heads=2,
                num_global_key_value_heads=1, head_dim=64, global_head_dim=128, sliding_window=128, num_experts=64,
                top_k_experts=8, moe_intermediate_size=32)

# GGUF name, Hugging Face name, stored type; per layer. attn_v exists in local layers only.
PER_LAYER = [
    ("attn_norm.weight", "input_layernorm.weight", gguf.F32),
    ("attn_q.weight", "self_attn.q_proj.weight", gguf.Q4_0),
    ("attn_k.weight", "self_attn.k_proj.weight", gguf.Q4_0),
    ("attn_v.weight", "self_attn.v_proj.weight", gguf.Q4_0),
    ("attn_output.weight", "self_attn.o_proj.weight", gguf.Q4_0),
    ("attn_q_norm.weight", "self_attn.q_norm.weight", gguf.F32),
    ("attn_k_norm.weight", "self_attn.k_norm.weight", gguf.F32),
    ("post_attention_norm.weight", "post_attention_layernorm.weight", gguf.F32),
    ("layer_output_scale.weight", "layer_scalar", gguf.F32),
    ("ffn_norm.weight", "pre_feedforward_layernorm.weight", gguf.F32),
    ("ffn_gate.weight", "mlp.gate_proj.weight", gguf.Q4_0),
    ("ffn_up.weight", "mlp.up_proj.weight", gguf.Q4_0),
    ("ffn_down.weight", "mlp.down_proj.weight", gguf.Q4_0),
    ("post_ffw_norm.weight", "post_feedforward_layernorm.weight", gguf.F32),
    ("ffn_gate_inp.weight", "router.proj.weight", gguf.F32),
    ("ffn_gate_inp.scale", "router.scale", gguf.F32),
    ("pre_ffw_norm_2.weight", "pre_feedforward_layernorm_2.weight", gguf.F32),
    ("post_ffw_norm_1.weight", "post_feedforward_layernorm_1.weight", gguf.F32),
    ("post_ffw_norm_2.weight", "post_feedforward_layernorm_2.weight", gguf.F32),
    ("ffn_gate_up_exps.weight", "experts.gate_up_proj", gguf.Q4_0),
    ("ffn_down_exps.weight", "experts.down_proj", gguf.Q4_0),
    ("ffn_down_exps.scale", "router.per_expert_scale", gguf.F32),
]


def model_config(vocabulary_size):
    return Gemma4TextConfig(
        vocab_size=vocabulary_size, max_position_embeddings=CONTEXT, hidden_size_per_layer_input=0, attention_k_eq_v=True,
        enable_moe_block=True, final_logit_softcapping=30.0, tie_word_embeddings=True, rms_norm_eps=1e-6,
        num_kv_shared_layers=0, pad_token_id=0, eos_token_id=1, bos_token_id=2, **GEOMETRY)


def load_corpus(path):
    """(training sections, held-out sections), shuffled the same way each time."""
    with open(path) as f:
        sections = [json.loads(line) for line in f]
    random.Random(7).shuffle(sections)
    return sections[HELD_OUT:], sections[:HELD_OUT]


def as_turns(sections, vocabulary):
    """Each section as one chat: the user asks for its title, the model answers with its text."""
    chooser = random.Random(3)
    for s in sections:
        title = s["title"] or "Overview"
        if chooser.random() < 0.7:
            title = f"{s['project']}: {title}"
        yield vocabulary.chat_prompt(title) + vocabulary.encode(s["text"][:LONGEST_TEXT] + "<turn|>\n")


def initialise(model):
    """Starting points that the architecture wants: attention has no 1/sqrt(d), so the q and k norms start small, and
    the router divides by sqrt(hidden), so its scale starts large. Layer scalars are random so that none is trivial."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.layer_scalar.fill_(0.85 + 0.3 * torch.rand(1, generator=generator).item())
            attention = layer.self_attn
            attention.q_norm.weight.fill_(attention.head_dim ** -0.25)
            attention.k_norm.weight.fill_(attention.head_dim ** -0.25)
            layer.router.scale.fill_(0.5 * model.config.hidden_size ** 0.5)


def train(model, stream, minutes, batch, peak_rate):
    """AdamW by the clock: warm-up of 200 steps, flat for 30 % of the time, then a cosine down to 2 %."""
    config = model.config
    routed = []  # (probabilities, chosen ids) of every layer of the present step
    for module in model.modules():
        if isinstance(module, Gemma4TextRouter):
            module.register_forward_hook(lambda _m, _i, out: routed.append((out[0], out[2])))
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    optimiser = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
        lr=peak_rate, betas=(0.9, 0.95), fused=True)
    model.train()
    start, step = time.time(), 0
    while (spent := (time.time() - start) / (60 * minutes)) < 1:
        decay = 1.0 if spent < 0.3 else 0.02 + 0.49 * (1 + math.cos(math.pi * (spent - 0.3) / 0.7))
        for group in optimiser.param_groups:
            group["lr"] = peak_rate * min(1, (step + 1) / 200) * decay
        at = torch.randint(0, len(stream) - SEQUENCE - 1, (batch,)).tolist()
        x = torch.stack([stream[i:i + SEQUENCE] for i in at])
        y = torch.stack([stream[i + 1:i + SEQUENCE + 1] for i in at])
        routed.clear()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = model(input_ids=x, use_cache=False).logits
        loss = F.cross_entropy(logits.float().view(-1, logits.shape[-1]), y.view(-1))
        balance = 0
        for probabilities, ids in routed:
            share = torch.bincount(ids.reshape(-1), minlength=config.num_experts).float() / ids.numel()
            mean = probabilities.reshape(-1, config.num_experts).float().mean(0)
            balance = balance + config.num_experts * (share * mean).sum() / config.num_hidden_layers
        (loss + LOAD_BALANCE * balance).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        step += 1
        if step % 100 == 0:
            print(f"step {step}: loss {loss.item():.3f}, balance {float(balance):.3f}", flush=True)
    model.eval()
    print(f"{step} steps of {batch} x {SEQUENCE} tokens")


def held_out_loss(model, chats):
    total = count = 0
    with torch.no_grad():
        for ids in chats:
            x = torch.tensor([ids[:SEQUENCE]]).cuda()
            logits = model(input_ids=x, use_cache=False).logits.float()
            total += F.cross_entropy(logits[0, :-1], x[0, 1:], reduction="sum").item()
            count += x.shape[1] - 1
    return total / count


def metadata(config, tokens, merges):
    is_global = [t == "full_attention" for t in config.layer_types]
    out = {}

    def put(key, kind, value):
        out[key] = gguf.Value(kind, value)

    def put_list(key, kind, values):
        out[key] = gguf.Value(gguf.ARRAY, values, kind)

    put("general.architecture", gguf.STRING, "gemma4")
    put("general.name", gguf.STRING, "gemma4-moe tiny")
    put("general.file_type", gguf.U32, 2)
    put("general.quantization_version", gguf.U32, 2)
    for key, value in [
        ("context_length", CONTEXT), ("embedding_length", config.hidden_size), ("block_count", config.num_hidden_layers),
        ("feed_forward_length", config.intermediate_size), ("attention.head_count", config.num_attention_heads),
        ("attention.key_length", config.global_head_dim), ("attention.value_length", config.global_head_dim),
        ("attention.key_length_swa", config.head_dim), ("attention.value_length_swa", config.head_dim),
        ("attention.sliding_window", config.sliding_window), ("attention.shared_kv_layers", 0),
        ("embedding_length_per_layer_input", 0), ("expert_count", config.num_experts),
        ("expert_used_count", config.top_k_experts), ("expert_feed_forward_length", config.moe_intermediate_size),
        ("rope.dimension_count", config.global_head_dim), ("rope.dimension_count_swa", config.head_dim),
    ]:
        put("gemma4." + key, gguf.U32, value)
    put_list("gemma4.attention.head_count_kv", gguf.I32,
             [config.num_global_key_value_heads if g else config.num_key_value_heads for g in is_global])
    put_list("gemma4.attention.sliding_window_pattern", gguf.BOOL, [not g for g in is_global])
    for key, value in [("attention.layer_norm_rms_epsilon", 1e-6), ("rope.freq_base", 1e6), ("rope.freq_base_swa", 1e4),
                       ("final_logit_softcapping", 30.0)]:
        put("gemma4." + key, gguf.FLOAT32, value)
    put("tokenizer.ggml.model", gguf.STRING, "gemma4")
    put_list("tokenizer.ggml.tokens", gguf.STRING, tokens)
    put_list("tokenizer.ggml.scores", gguf.FLOAT32, [-1000.0] * len(tokens))
    put_list("tokenizer.ggml.token_type", gguf.I32, token_types(tokens))
    put_list("tokenizer.ggml.merges", gguf.STRING, [f"{a} {b}" for a, b in merges])
    for key, token in [("padding", "<pad>"), ("eos", "<eos>"), ("bos", "<bos>"), ("unknown", "<unk>"), ("mask", "<mask>"),
                       ("eot", "<turn|>")]:
        put(f"tokenizer.ggml.{key}_token_id", gguf.U32, SPECIALS.index(token))
    put("tokenizer.ggml.add_bos_token", gguf.BOOL, True)
    put("tokenizer.ggml.add_space_prefix", gguf.BOOL, False)
    return out


def export(model, tokens, merges, path):
    """Writes the GGUF and loads its dequantised weights back into the model, so that what is evaluated is the file."""
    config = model.config
    weights = {k: v.detach().float().cpu().numpy() for k, v in model.state_dict().items()}
    tensors = []

    def put(name, key, kind):
        w = np.atleast_1d(weights[key])
        tensors.append(gguf.Tensor(name, w.shape, kind, gguf.quantise(w, kind)))
        weights[key] = gguf.dequantise(tensors[-1]).reshape(weights[key].shape)

    put("token_embd.weight", "model.embed_tokens.weight", gguf.Q8_0)
    put("output_norm.weight", "model.norm.weight", gguf.F32)
    # Frequency divisors of the global layers: a quarter of the head rotates, 1e30 stops the rest.
    pairs = config.global_head_dim // 2
    divisors = np.array([1.0] * (pairs // 4) + [1e30] * (pairs - pairs // 4), "<f4")
    tensors.append(gguf.Tensor("rope_freqs.weight", (pairs,), gguf.F32, divisors.tobytes()))
    for i, kind in enumerate(config.layer_types):
        for name, key, stored in PER_LAYER:
            if not (name == "attn_v.weight" and kind == "full_attention"):
                put(f"blk.{i}.{name}", f"model.layers.{i}.{key}", stored)
    gguf.write(path, metadata(config, tokens, merges), tensors)
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model.load_state_dict({k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in weights.items()})


def main():
    parser = argparse.ArgumentParser(description="train the tiny model and write it as GGUF")
    parser.add_argument("--corpus", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--minutes", type=float, default=7)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--peak-rate", type=float, default=3e-3)
    args = parser.parse_args()
    torch.manual_seed(1)
    training, held_out = load_corpus(args.corpus)
    tokens, merges = learn((s["text"] for s in training[::2]), VOCABULARY)
    vocabulary = Vocabulary(tokens, merges)
    chats = list(as_turns(training, vocabulary))
    random.Random(1).shuffle(chats)
    stream = torch.tensor([i for chat in chats for i in chat]).cuda()

    config = model_config(len(tokens))
    config._attn_implementation = "sdpa"
    config._experts_implementation = "grouped_mm"
    model = Gemma4ForCausalLM(config).cuda()
    initialise(model)
    train(model, stream, args.minutes, args.batch, args.peak_rate)

    torch.backends.cuda.matmul.allow_tf32 = False
    checked = list(as_turns(held_out, vocabulary))[:40]
    before = held_out_loss(model, checked)
    export(model, tokens, merges, args.out)
    print(f"held-out loss in nats a token: trained {before:.4f}, as stored {held_out_loss(model, checked):.4f}")


if __name__ == "__main__":
    main()
