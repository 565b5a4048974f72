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

  // First byte: 0 rules, 1 a JSON schema, 2 tools.
  out["grammar/rules"] = std::string(1, '\0') +
                         "root ::= \"a\" list | [^b-d\\n]{1,3} # end\nlist ::= (\",\" .)+ list?\n";
  out["grammar/tokens"] =
      std::string(1, '\0') + "root ::= <|tool_call> !<|tool_call>* \"\\u20AC\" <tool_call|>";
  out["grammar/recursion"] = std::string(1, '\0') + "root ::= \"(\" root \")\" | root \"x\" | \"\"";
  out["grammar/schema"] =
      "\1{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"maxLength\":4},\"b\":{"
      "\"enum\":[1,\"x\"]},"
      "\"c\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}";
  // Was once a grammar for a call that cannot be read back.
  out["grammar/no_object"] =
      "\2[{\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"integer\"}}}]";
  out["grammar/tools"] =
      "\2[{\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{\"n\":{"
      "\"type\":\"integer\"},"
      "\"s\":{\"type\":\"array\",\"items\":{\"type\":\"string\"}}},\"required\":[\"n\"]}}}]";

  {  // two tokens and a checkpoint of the target's small cache; digests are made right by the target
    std::string snapshot(256, '\0');
    snapshot.replace(0, 8, std::string_view("ASSAYKV\x1a", 8));
    const auto put = [&](std::size_t at, unsigned char value) {
      snapshot[at] = static_cast<char>(value);
    };
    put(8, 1);   // version
    put(13, 1);  // header bytes: 256
    snapshot += std::string("\x05\0\0\0\x07\0\0\0", 8) + std::string(24, 'r') + std::string(4, 'c');
    put(16, static_cast<unsigned char>(snapshot.size() - 256));
    put(17, 1);   // file bytes
    put(24, 2);   // ids
    put(28, 1);   // f16
    put(32, 24);  // row bytes
    put(40, 1);   // checkpoints
    put(208, 1);  // its position
    out["snapshot/two_tokens"] = snapshot;
    out["snapshot/cut"] = snapshot.substr(0, 270);
  }
  out["snapshot/empty"] = "";

  out["reply/text"] = "\x02Hello, na\xC3\xAFve \xF0\x9F\x98\x80 data: x\nevent: y\r\n sto\n";
  out["reply/stop"] = "\x01one st stop two";
  out["reply/split"] = "\x03\xE2\x82\xAC\xE2\x82\xAC\xE2\x82\n\n";
  out["reply/invalid"] = std::string("\0\xFF\xC0\xAF\0\xED\xA0\x80\xF4\x90\x80\x80", 12);

  out["tool_call/call"] =
      "<|channel>thought\nhm<channel|>ok<|tool_call>call:f{a:<|\"|>x, "
      "{y}<|\"|>,b:[1,-2.5e3,null],c:{d:true}}<tool_call|>";
  out["tool_call/two"] =
      "<|tool_call>call:f{}<tool_call|><|tool_call>call:g{a:1}<tool_call|><|tool_response>";
  out["tool_call/broken"] = "<|tool_call>call:f{a:<|\"|>open";
  out["tool_call/stray"] = "call:f{a:1}<tool_call|>";
  return out;
}

}  // namespace assay
