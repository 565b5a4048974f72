#include "bench/needles.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

#include "bench/tiers.h"
#include "kernels/base/error.h"

namespace assay {
namespace {

using nlohmann::json;

// The largest difference of two lists of log-probabilities; infinite when they do not match or one is not a number.
double distance(const json& x, const json& y) {
  constexpr double kFar = std::numeric_limits<double>::infinity();
  if (x.size() != y.size() || x.empty()) return kFar;
  double worst = 0.0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (!x[i].is_number() || !y[i].is_number()) return kFar;
    const double d = std::fabs(x[i].get<double>() - y[i].get<double>());
    if (!(d < kFar)) return kFar;
    worst = std::max(worst, d);
  }
  return worst;
}

}  // namespace

const std::vector<NeedleCheck>& needle_checks() {
  static const std::vector<NeedleCheck> checks{
      {"needle_512", 512}, {"needle_4k", 4096}, {"needle_32k", 32768}, {"needle_128k", 131072}};
  return checks;
}

const NeedleCheck& needle_check(std::string_view id) {
  std::string names;
  for (const NeedleCheck& c : needle_checks()) {
    if (c.id == id) return c;
    names += (names.empty() ? "" : ", ") + c.id;
  }
  throw UserError("no needle check '" + std::string(id) + "': valid are " + names);
}

const std::vector<Needle>& needles() {
  static const std::vector<Needle> all = [] {
    std::vector<Needle> list;
    std::istringstream lines(tier_text("needles", 0));
    for (std::string line; std::getline(lines, line);) {
      const auto bar = line.find('|');
      list.push_back({"\n" + line.substr(0, bar), line.substr(bar + 1)});
    }
    return list;
  }();
  return all;
}

double needle_bound(const std::string& numerics, const std::string& backend) {
  return numerics == "exact" || backend == "host" ? 0.01 : 2.0;
}

json judge_needles(const json& stock, const json& stack, double bound) {
  int checks = 0;
  int agree = 0;
  int seen = 0;
  int found_stock = 0;
  int found_stack = 0;
  double worst = 0.0;
  for (const auto& [id, said] : stock.items()) {
    const json& other = stack.at(id);
    for (std::size_t i = 0; i < said.size(); ++i) {
      const json nothing{{"logprobs", json::array()}, {"found", false}};
      const json& mine = i < other.size() ? other[i] : nothing;
      const double d = distance(said[i].at("logprobs"), mine.at("logprobs"));
      ++checks;
      agree += d <= bound ? 1 : 0;
      worst = std::max(worst, d);
      seen += distance(said[i].at("logprobs"), said[i].at("without")) > bound ? 1 : 0;
      found_stock += said[i].at("found").get<bool>() ? 1 : 0;
      found_stack += mine.at("found").get<bool>() ? 1 : 0;
    }
  }
  return {{"checks", checks},
          {"agree", agree},
          {"worst", std::isfinite(worst) ? json(worst) : json(nullptr)},
          {"bound", bound},
          {"seen", seen},
          {"found_stock", found_stock},
          {"found_stack", found_stack}};
}

}  // namespace assay
