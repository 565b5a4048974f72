#include "engine/fuzz/seeds.h"

#include <cstring>

#include "engine/fuzz/malformed_gguf.h"

namespace assay {

std::map<std::string, std::string> fuzz_seeds() {
  std::map<std::string, std::string> out;
  const GgufParts sound = smallest_model();
  out["gguf/smallest.gguf"] = sound.write();
  {
    std::string v2 = sound.write();
    v2[4] = 2;
    out["gguf/version_2.gguf"] = v2;
  }
  {  // Only a vocabulary: nearly all bytes are the tokenizer's.
    GgufParts vocabulary = sound;
    vocabulary.tensors.clear();
    std::erase_if(vocabulary.pairs, [](const auto& p) { return !p.key.starts_with("tokenizer."); });
    out["gguf/vocabulary.gguf"] = vocabulary.write();
  }
  {  // The other layouts: separate head, V in a global layer, split experts.
    GgufParts other = sound;
    GgufParts::Tensor head = other.tensor("token_embd.weight");
    head.name = "output.weight";
    other.tensors.push_back(head);
    GgufParts::Tensor v = other.tensor("blk.1.attn_k.weight");
    v.name = "blk.1.attn_v.weight";
    other.tensors.push_back(v);
    GgufParts::Tensor gate = other.tensor("blk.0.ffn_gate_up_exps.weight");
    std::erase_if(other.tensors,
                  [](const auto& t) { return t.name == "blk.0.ffn_gate_up_exps.weight"; });
    gate.ne[1] /= 2;
    gate.data.resize(gate.data.size() / 2);
    for (const char* name : {"blk.0.ffn_gate_exps.weight", "blk.0.ffn_up_exps.weight"}) {
      gate.name = name;
      other.tensors.push_back(gate);
    }
    out["gguf/other_layouts.gguf"] = other.write();
  }
  out["gguf/empty.gguf"] = "";
  out["gguf/magic_only.gguf"] = "GGUF";

  out["tokenizer/empty"] = "";
  out["tokenizer/words"] =
      "The quick brown fox  jumps\tover the lazy dog.\r\n\n\n    return x + 1;\n";
  out["tokenizer/specials"] =
      "<bos><|turn>user\nHi<turn|>\n<|tool_call>call:f{a:<|\"|>b<|\"|>}<tool_call|><0x41></s><unk>";
  out["tokenizer/unicode"] =
      "na\xC3\xAFve caf\xC3\xA9 \xE2\x80\x93 \xE2\x80\x9Cquotes\xE2\x80\x9D \xF0\x9F\x98\x80 "
      "\xE6\xBC\xA2\xE5\xAD\x97 "
      "\xE2\x96\x81\xE2\x96\x81 e\xCC\x81";
  out["tokenizer/invalid"] = std::string(
      "\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41 \xED\xA0\x80 \xF4\x91\x92\x93\xFF "
      "\xE1\x80\xE2\xF0\x91\x92\x00 \xE2\x96",
      30);
  out["tokenizer/runs"] =
      std::string(40, '\n') + std::string(40, ' ') + std::string(40, 'e') + std::string(40, '<');
  return out;
}

}  // namespace assay
