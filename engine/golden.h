// The reference run's numbers for the shipped model (engine/testdata/golden, written by scripts/convert_golden.py) and
// what the tests of both lanes and both backends do with them. For tests only.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "engine/forward.h"
#include "engine/sampler.h"
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

inline constexpr std::size_t kAll = std::numeric_limits<std::size_t>::max();

// Logits of the golden positions among the tokens fed, row after row, beside the golden ones.
struct GoldenRows {
  std::vector<float> got;
  std::vector<float> want;
  std::size_t width = 0;
};
// Of the first `most` tokens of sequence i; `step`: token by token.
inline GoldenRows golden_rows(Session& session, int i, bool step = false, std::size_t most = kAll) {
  auto ids = golden().ints("ids" + std::to_string(i));
  ids.resize(std::min(ids.size(), most));
  const auto positions = golden().ints("pos" + std::to_string(i));
  const auto logits = golden().floats("logits" + std::to_string(i));
  GoldenRows rows{.got = {}, .want = {}, .width = logits.size() / positions.size()};
  const auto row_of = [&](int p) {
    return std::find(positions.begin(), positions.end(), p) - positions.begin();
  };
  const auto wants = [&](int p) { return row_of(p) < std::ssize(positions); };
  const auto sink = [&](int p, std::span<const float> row) {
    const auto want =
        std::span(logits).subspan(static_cast<std::size_t>(row_of(p)) * rows.width, rows.width);
    rows.got.insert(rows.got.end(), row.begin(), row.end());
    rows.want.insert(rows.want.end(), want.begin(), want.end());
  };
  if (step) {
    for (const TokenId id : ids) session.feed({&id, 1}, wants, sink);
  } else {
    session.feed(ids, wants, sink);
  }
  if (rows.got.empty()) throw std::runtime_error("no golden position among the tokens fed");
  return rows;
}
inline std::vector<float> logits_of(Session& session, int i, bool step = false) {
  return golden_rows(session, i, step).got;
}
inline std::vector<float> logits_of(Model& m, int i, bool step = false) {
  Session session(m);
  return logits_of(session, i, step);
}

// Relative L2; infinity where a value is no number.
struct Distances {
  double all = 0.0;
  std::vector<double> row;  // rising
  double median() const { return std::isfinite(all) ? row[(row.size() - 1) / 2] : all; }
  double worst() const { return row.back(); }
};
inline Distances distances(const GoldenRows& rows) {
  Distances d{.all = distance(rows.got, rows.want), .row = {}};
  for (std::size_t at = 0; at < rows.want.size(); at += rows.width) {
    d.row.push_back(distance(std::span(rows.got).subspan(at, rows.width),
                             std::span(rows.want).subspan(at, rows.width)));
  }
  std::sort(d.row.begin(), d.row.end());
  return d;
}

// The experts that a model gives to every token of ids.
inline RouteTable routes_of(Model& m, std::span<const TokenId> ids) {
  RouteTable table(m.config().layers, m.config().experts_used);
  Session session(m);
  session.set_hooks({.routed = [&](const RoutedChunk& chunk) { table.record(chunk); }});
  session.feed(
      ids, [](int) { return false; }, [](int, std::span<const float>) {});
  return table;
}

// The golden text of every prompt is fed, whatever the model itself would have said.
struct TeacherForced {
  int steps = 0;
  int equal = 0;
  std::vector<std::string>
      wrong;  // other tokens although the two likeliest golden ones are not near each other
};
inline TeacherForced teacher_forced(Model& m,
                                    std::size_t most_prompts = kAll,
                                    std::size_t most_steps = kAll) {
  constexpr double kNear = 0.25;
  TeacherForced out;
  for (std::size_t p = 0; p < std::min(golden().prompts().size(), most_prompts); ++p) {
    const auto& prompt = golden().prompts().at(p);
    const auto want = prompt.at("greedy_ids").get<std::vector<TokenId>>();
    const auto gap = prompt.at("top2_gap").get<std::vector<double>>();
    Session session(m);
    auto logits = session.feed(prompt.at("prompt_ids").get<std::vector<TokenId>>());
    for (std::size_t i = 0; i < std::min(want.size(), most_steps); ++i) {
      const TokenId got = greedy_token(logits);
      if (got == want[i]) {
        ++out.equal;
      } else if (!(gap.at(i) < kNear)) {
        out.wrong.push_back(prompt.at("prompt").dump() + " step " + std::to_string(i) + ": " +
                            std::to_string(got) + " for " + std::to_string(want[i]));
      }
      ++out.steps;
      logits = session.feed({&want[i], 1});
    }
  }
  std::printf("%d of %d steps equal\n", out.equal, out.steps);
  return out;
}

// Of the first and the last layer: the router's choice must be equal, the rest within rounding. Names what is not.
inline std::vector<std::string> wrong_stages(Model& m) {
  std::map<std::string, std::vector<float>> got;
  Session session(m);
  session.set_hooks({.stage = [&](const StageChunk& c) {
    auto& rows = got["stage.blk" + std::to_string(c.layer) + "." + c.name];
    rows.insert(rows.end(), c.data, c.data + static_cast<std::ptrdiff_t>(c.tokens) * c.width);
  }});
  session.feed(golden().ints("stage_ids"));
  std::vector<std::string> wrong;
  for (const int layer : {0, 5}) {
    for (const std::string name : kStageNames) {
      const std::string key = "stage.blk" + std::to_string(layer) + "." + name;
      const auto want = golden().floats(key);
      const bool same_size = got[key].size() == want.size();
      const bool good =
          same_size && (name == "router_ids" ? got[key] == want : distance(got[key], want) <= 1e-5);
      if (!good) wrong.push_back(key);
    }
  }
  return wrong;
}

}  // namespace assay
