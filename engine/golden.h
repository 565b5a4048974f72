// The reference run's numbers for the shipped model (engine/testdata/golden, written by scripts/convert_golden.py) and
// what the tests of both lanes do with them. For tests only.
#pragma once
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "engine/forward.h"
#include "kernels/base/measure.h"
#include "kernels/base/op_info.h"
#include "kernels/base/program.h"

namespace assay {

inline const std::string kShippedModel =
    ASSAY_SOURCE_DIR "/engine/models/tiny-gemma4-moe-q4_0.gguf";
inline constexpr int kGoldenSequences = 4;

class Golden {
 public:
  explicit Golden(const std::string& folder)
      : index_(nlohmann::json::parse(read_file(folder + "/golden.index.json")).at("arrays")),
        prompts_(nlohmann::json::parse(read_file(folder + "/prompts.json")).at("cases")),
        blob_(read_file(folder + "/golden.bin")) {}

  std::vector<float> floats(const std::string& name) const { return read<float>(name, "f4"); }
  std::vector<std::int32_t> ints(const std::string& name) const {
    return read<std::int32_t>(name, "i4");
  }
  std::vector<std::size_t> shape(const std::string& name) const {
    return index_.at(name).at("shape").get<std::vector<std::size_t>>();
  }
  // [{prompt, prompt_ids, greedy_ids, top2_gap, text}]
  const nlohmann::json& prompts() const { return prompts_; }

 private:
  template <class T>
  std::vector<T> read(const std::string& name, const char* dtype) const {
    const auto& entry = index_.at(name);
    if (entry.at("dtype") != dtype) throw std::runtime_error(name + " has another dtype");
    std::size_t n = 1;
    for (const std::size_t d : shape(name)) n *= d;
    std::vector<T> out(n);
    std::memcpy(out.data(), blob_.data() + entry.at("offset").get<std::size_t>(), n * sizeof(T));
    return out;
  }

  nlohmann::json index_;
  nlohmann::json prompts_;
  std::string blob_;
};

inline const Golden& golden() {
  static const Golden g(ASSAY_SOURCE_DIR "/engine/testdata/golden");
  return g;
}

// Of every op the variant whose name begins with `name` (avx512 finds avx512_vnni too) and that promises stock's bits,
// so that a suite is quick; where the CPU lacks the instructions stock serves.
inline Selection vector_variants(const std::string& name) {
  Selection s;
  for (const OpInfo* op : all_ops()) {
    Choice c;
    for (const auto& v : op->variants) {
      if (v.exactness == Exactness::kBitwise && v.name.rfind(name, 0) == 0) c.variant = v.name;
    }
    s.choices[op->name] = c;
  }
  return s;
}

inline double distance(std::span<const float> got, std::span<const float> want) {
  const std::vector<double> reference(want.begin(), want.end());
  return rel_l2(got, reference);
}

// Logits of the golden positions of sequence i, row after row; `step`: token by token.
inline std::vector<float> logits_of(Session& session, int i, bool step = false) {
  const auto ids = golden().ints("ids" + std::to_string(i));
  const auto positions = golden().ints("pos" + std::to_string(i));
  const std::set<int> wanted(positions.begin(), positions.end());
  std::vector<float> rows;
  const auto wants = [&](int p) { return wanted.contains(p); };
  const auto sink = [&](int, std::span<const float> row) {
    rows.insert(rows.end(), row.begin(), row.end());
  };
  if (step) {
    for (const TokenId id : ids) session.feed({&id, 1}, wants, sink);
  } else {
    session.feed(ids, wants, sink);
  }
  return rows;
}
inline std::vector<float> logits_of(Model& m, int i, bool step = false) {
  Session session(m);
  return logits_of(session, i, step);
}

}  // namespace assay
