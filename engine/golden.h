// The reference run's numbers for the shipped model (engine/testdata/golden, written by scripts/convert_golden.py), for
// tests only.
#pragma once
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "kernels/base/program.h"

namespace assay {

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

}  // namespace assay
