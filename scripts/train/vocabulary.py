"""The tiny model's vocabulary: trained with Hugging Face tokenizers, encoded by the rules the engine implements.

Layout: special tokens, newline runs of 1 to 8, the 256 byte tokens, then BPE pieces by merge rank, padded with
<unusedN>. Encoding: spaces become U+2581, the text is split into runs of newlines and runs of anything else, each run
is one BPE problem, and a newline run that is a token of its own is emitted whole.
"""
import json

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

SPECIALS = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<|turn>", "<turn|>", "<|channel>", "<channel|>", "<|think|>",
            "<|tool>", "<tool|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", '<|"|>',
            "<|image|>", "<|audio|>", "<|video|>"]
# Printed when decoded (type 4, user-defined); the other specials are control tokens (type 3).
VISIBLE = {"<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", '<|"|>'}
NEWLINE_RUNS = ["\n" * n for n in range(1, 9)]
BYTES = [f"<0x{b:02X}>" for b in range(256)]
# GGUF token types
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


def learn(texts, size):
    """(tokens, merges) of a vocabulary of `size` entries learned from the texts."""
    learner = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    learner.normalizer = normalizers.Replace(" ", "▁")
    # While learning, words, single digits and punctuation runs stay apart, so that no merge spans them.
    learner.pre_tokenizer = pre_tokenizers.Split(
        Regex(r"\n+|▁?[A-Za-z]+|▁?[0-9]|▁+(?=▁)|▁?[^A-Za-z0-9▁\n]+|▁+"), behavior="isolated")
    alphabet = [chr(c) for c in range(33, 127)] + ["▁"]
    learner.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=size - len(BYTES) - len(NEWLINE_RUNS), special_tokens=SPECIALS, show_progress=False,
        limit_alphabet=200, initial_alphabet=alphabet))
    model = json.loads(learner.to_str())["model"]
    merges = [tuple(m) if isinstance(m, list) else tuple(m.split(" ")) for m in model["merges"]]
    pieces = [t for t in sorted(model["vocab"], key=model["vocab"].get) if t not in SPECIALS and "\n" not in t]
    tokens = (SPECIALS + NEWLINE_RUNS + BYTES + pieces)[:size]
    known = set(tokens)
    merges = [(a, b) for a, b in merges if a in known and b in known and a + b in known and "\n" not in a + b]
    tokens += [f"<unused{i}>" for i in range(len(tokens), size)]
    return tokens, merges


def token_types(tokens):
    byte_tokens = set(BYTES)

    def kind(token):
        if token == "<unk>":
            return UNKNOWN
        if token in VISIBLE:
            return USER_DEFINED
        if token in SPECIALS:
            return CONTROL
        if token in byte_tokens:
            return BYTE
        return UNUSED if token.startswith("<unused") else NORMAL

    return [kind(t) for t in tokens]


class Vocabulary:
    """Encodes and decodes with given tokens and merges."""

    def __init__(self, tokens, merges):
        self.ids = {t: i for i, t in enumerate(tokens)}
        self._bpe = Tokenizer(models.BPE(vocab=self.ids, merges=merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True))
        self._bpe.normalizer = normalizers.Replace(" ", "▁")
        self._bpe.pre_tokenizer = pre_tokenizers.Split(Regex(r"[^\n]+|\n+"), behavior="isolated")
        self._bpe.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
        self._bpe.add_special_tokens([t for t in tokens if t in SPECIALS])

    def encode(self, text):
        return self._join_newlines(self._bpe.encode(text, add_special_tokens=False).ids)

    def decode(self, ids):
        return self._bpe.decode(ids, skip_special_tokens=False)

    def chat_prompt(self, user):
        """One user turn and the opening of the model's turn, thinking off."""
        return self.encode(f"<bos><|turn>user\n{user}<turn|>\n<|turn>model\n<|channel>thought\n<channel|>")

    def _join_newlines(self, ids):
        # There are no merges of newlines, so a run arrives as single ones; a run that is a token is emitted whole.
        newline, out, i = self.ids["\n"], [], 0
        while i < len(ids):
            end = i
            while end < len(ids) and ids[end] == newline:
                end += 1
            if end == i:
                out.append(ids[i])
                i += 1
                continue
            run = self.ids.get("\n" * (end - i))
            out.extend([newline] * (end - i) if run is None else [run])
            i = end
        return out
