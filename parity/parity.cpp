#include "parity/parity.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include <re2/re2.h>

#include "kernels/base/host_pool.h"
#include "kernels/base/measure.h"
#include "kernels/base/wait_limit.h"
#include "parity/compare.h"

namespace assay {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// 0xFF is NaN in both float types; 0x55 differs from it in every bit pair.
constexpr std::byte kPoison{0xFF};
constexpr std::byte kOtherPoison{0x55};
// Rounding the exact result to fp32 alone costs up to this much, so "2x stock's own error" starts from it.
constexpr double kRounding = 0x1p-24;

// The most capable machine of the backend: what is eligible there but not here is a matter of hardware.
DeviceInfo best_equipped(const DeviceInfo& here) {
  DeviceInfo best = here;
  best.avx2 = best.avx512_vnni = true;
  best.threads = std::max(best.threads, 256);
  if (here.backend == Backend::kCuda) {
    best.cc = std::max(best.cc, 120);
    best.multiprocessors = std::max(best.multiprocessors, 192);
    best.shared_bytes_per_block = std::max(best.shared_bytes_per_block, 227 * 1024);
  }
  return best;
}

bool on_backend(const VariantInfo& v, Backend backend) {
  return backend == Backend::kHost ? v.host_declared : v.cuda_declared;
}

// A variant of another op or of this one on a problem with the same inputs.
struct Counterpart {
  Outputs outputs;
  std::string unavailable;      // why there are none
  std::string fault;            // it ran and broke a rule: its outputs prove nothing
  bool lacks_hardware = false;  // `unavailable` for lack of hardware
};

// One case: its problem, the reference and the runs that several variants share.
class CaseBench {
 public:
  CaseBench(const OpInfo& op,
            const ParityOptions& options,
            std::vector<std::unique_ptr<HostPool>>& pools,
            std::size_t index)
      : op_(op), options_(options), pools_(pools), index_(index) {
    rebuild();
    shape_ = problem_->shape_text();
    for (const Field& f : problem_->fields()) {
      if (f.dir == Dir::kIn) inputs_.emplace_back(f.data, f.data + f.bytes());
    }
    fields_ = take_outputs(*problem_);
  }

  CaseResult judge(int variant, std::vector<std::string>& unchecked);

 private:
  void rebuild() { problem_ = on_device(op_.make_problem(index_, options_.rng_seed)); }
  std::unique_ptr<Problem> on_device(std::unique_ptr<Problem> problem) const {
    if (backend() == Backend::kCuda) problem->use_device(options_.graph);
    return problem;
  }
  Backend backend() const { return options_.device.backend; }
  // The reference of what the variant's column computes.
  const std::vector<std::vector<double>>& reference(int variant) {
    const Numerics lane = problem_->judged_numerics(variant, backend());
    const auto it = references_.find(lane);
    if (it != references_.end()) return it->second;
    return references_.emplace(lane, problem_->reference_of(variant, backend())).first->second;
  }
  Stream stream(std::size_t thread_index) const {
    return Stream{.cuda = nullptr, .pool = pools_[thread_index].get()};
  }
  const VariantInfo& info(int variant) const {
    return op_.variants[static_cast<std::size_t>(variant)];
  }

  // Runs once; adds a fault for a throw, a broken fence or a changed input. Nothing when it threw.
  std::optional<Outputs> run(Problem& problem,
                             int variant,
                             std::size_t thread_index,
                             std::byte poison,
                             std::vector<std::string>& faults);
  std::string changed_input() const;
  const Counterpart& counterpart(int variant);
  Counterpart own_counterpart(int other);
  Counterpart foreign_counterpart(const std::string& op_name, const std::string& variant_name);
  const ReferenceComparison& stock_error();
  void check_case(int variant, std::vector<std::string>& faults);
  void check_replay(int variant, std::vector<std::string>& faults);
  void check_rows(int variant,
                  const Outputs& whole,
                  std::vector<std::string>& faults,
                  std::vector<std::string>& unchecked);

  void check_layout(int variant, std::vector<std::string>& faults);

  const OpInfo& op_;
  const ParityOptions& options_;
  std::vector<std::unique_ptr<HostPool>>& pools_;
  std::size_t index_;
  std::unique_ptr<Problem> problem_;
  std::string shape_;
  std::map<Numerics, std::vector<std::vector<double>>> references_;
  std::vector<std::vector<std::byte>> inputs_;
  Outputs fields_;
  std::map<std::string, Counterpart> counterparts_;
  std::optional<ReferenceComparison> stock_error_;
};

std::optional<Outputs> CaseBench::run(Problem& problem,
                                      int variant,
                                      std::size_t thread_index,
                                      std::byte poison,
                                      std::vector<std::string>& faults) {
  problem.prepare(variant);
  problem.reset(poison);
  try {
    problem.run(variant, stream(thread_index));
  } catch (const std::exception& e) {
    faults.push_back(std::string("threw: ") + e.what());
    return std::nullopt;
  }
  if (const std::string where = problem.broken_guard(); !where.empty()) {
    faults.push_back("wrote out of bounds: guard of " + where);
  }
  return take_outputs(problem);
}

std::string CaseBench::changed_input() const {
  std::size_t i = 0;
  for (const Field& f : problem_->fields()) {
    if (f.dir != Dir::kIn) continue;
    const auto& before = inputs_[i++];
    if (before.empty() || std::memcmp(before.data(), f.data, before.size()) == 0) continue;
    const auto at = std::mismatch(before.begin(), before.end(), f.data).first - before.begin();
    return f.name + " at byte " + std::to_string(at);
  }
  return {};
}

const Counterpart& CaseBench::counterpart(int variant) {
  const VariantInfo& v = info(variant);
  const std::string name = v.exactness == Exactness::kBitwise ? v.bitwise_to : "stock";
  if (const auto it = counterparts_.find(name); it != counterparts_.end()) return it->second;
  Counterpart made;
  if (const auto colon = name.find(':'); colon != std::string::npos) {
    made = foreign_counterpart(name.substr(0, colon), name.substr(colon + 1));
  } else if (const int other = op_.find(name); other >= 0) {
    made = own_counterpart(other);
  } else {
    made.unavailable = "bitwise_to names no variant: " + name;
  }
  return counterparts_.emplace(name, std::move(made)).first->second;
}

Counterpart CaseBench::own_counterpart(int other) {
  Counterpart made;
  if (const Why why = problem_->ineligible(other, options_.device)) {
    made.unavailable = info(other).name + ": " + why;
    made.lacks_hardware = problem_->ineligible(other, best_equipped(options_.device)) == nullptr;
    return made;
  }
  std::vector<std::string> faults;
  // What waits for the host cannot be captured: it stands beside a graph as a direct launch.
  std::unique_ptr<Problem> direct;
  if (options_.graph && info(other).host_sync) {
    direct = op_.make_problem(index_, options_.rng_seed);
    direct->use_device(false);
  }
  auto outputs = run(direct ? *direct : *problem_, other, 0, kPoison, faults);
  if (outputs) made.outputs = std::move(*outputs);
  if (const std::string where = changed_input(); !where.empty()) {
    faults.push_back("changed its input " + where);
    rebuild();
  }
  if (!faults.empty()) made.fault = info(other).name + " " + faults.front();
  return made;
}

Counterpart CaseBench::foreign_counterpart(const std::string& op_name,
                                           const std::string& variant_name) {
  Counterpart made;
  const OpInfo* other = nullptr;
  for (const OpInfo* candidate : all_ops()) {
    if (candidate->name == op_name) other = candidate;
  }
  const int v = other != nullptr ? other->find(variant_name) : -1;
  if (v < 0 || other->make_problem == nullptr) {
    made.unavailable = "no variant " + op_name + ":" + variant_name;
    return made;
  }
  const auto it =
      std::find(other->case_names.begin(), other->case_names.end(), problem_->case_name());
  if (it == other->case_names.end()) {
    made.unavailable = op_name + " has no case " + problem_->case_name();
    return made;
  }
  auto twin = other->make_problem(static_cast<std::size_t>(it - other->case_names.begin()),
                                  options_.rng_seed);
  problem_->reset();
  for (const Field& f : problem_->fields()) {
    if (f.dir != Dir::kOut && !twin->set_input(f)) {
      made.unavailable =
          op_name + "'s case " + problem_->case_name() + " has no input like " + f.name;
      return made;
    }
  }
  // A variant for the CPU is the counterpart of one for the GPU across backends.
  const VariantInfo& twin_info = other->variants[static_cast<std::size_t>(v)];
  const bool here = backend() == Backend::kHost || twin_info.cuda_declared;
  const DeviceInfo& twin_device = here ? options_.device : host_device();
  if (const Why why = twin->ineligible(v, twin_device)) {
    made.unavailable = op_name + ":" + variant_name + ": " + why;
    made.lacks_hardware = twin->ineligible(v, best_equipped(twin_device)) == nullptr;
    return made;
  }
  if (here) twin = on_device(std::move(twin));
  std::vector<std::string> faults;
  auto outputs = run(*twin, v, 0, kPoison, faults);
  if (outputs) made.outputs = std::move(*outputs);
  if (!faults.empty()) made.fault = op_name + ":" + variant_name + " " + faults.front();
  return made;
}

const ReferenceComparison& CaseBench::stock_error() {
  if (!stock_error_) {
    // Stock by its own class; what it is bitwise to does not matter here.
    auto it = counterparts_.find("stock");
    if (it == counterparts_.end()) it = counterparts_.emplace("stock", own_counterpart(0)).first;
    const std::vector<double> no_bound(fields_.size(), kInfinity);
    stock_error_ =
        it->second.unavailable.empty()
            ? compare_reference(it->second.outputs, reference(0), no_bound, problem_->rows())
            : ReferenceComparison{it->second.unavailable,
                                  std::vector<double>(fields_.size(), kInfinity),
                                  kInfinity};
  }
  return *stock_error_;
}

void CaseBench::check_case(int variant, std::vector<std::string>& faults) {
  if (total_bytes(fields_) == 0)
    faults.emplace_back("compares nothing: the case has no output bytes");
  const double share = nonfinite_share(fields_, reference(variant));
  if (!(share <= 0.5) && !problem_->mostly_nonfinite()) {
    faults.push_back("the reference is mostly non-finite (" + std::to_string(share) +
                     " of its values), and the case does not say so");
  }
  // A bound of 1 would let all zeros pass.
  if (const double bound = problem_->error_bound_of(variant, backend());
      !(bound >= 0.0 && bound < 1.0)) {
    faults.push_back("error_bound " + std::to_string(bound) +
                     " is no bound: it must lie in [0, 1)");
  }
}

void CaseBench::check_rows(int variant,
                           const Outputs& whole,
                           std::vector<std::string>& faults,
                           std::vector<std::string>& unchecked) {
  const int rows = problem_->rows();
  if (rows == 0) {
    const std::string note =
        "batch_invariant: neighbours of a row (the contract does not say kTokenRows)";
    if (std::find(unchecked.begin(), unchecked.end(), note) == unchecked.end())
      unchecked.push_back(note);
    return;
  }
  std::vector<int> probes = {0, rows / 2, rows - 1};
  probes.erase(std::unique(probes.begin(), probes.end()), probes.end());
  if (rows == 1) return;
  for (const int r : probes) {
    const auto alone = problem_->row_problem(r);
    if (alone->ineligible(variant, options_.device) != nullptr) continue;
    const auto got = run(*alone, variant, 0, kPoison, faults);
    if (!got) return;
    Outputs cut = whole;
    for (std::size_t i = 0; i < cut.size(); ++i) {
      const std::size_t part = got->at(i).bytes.size();
      const std::size_t from = part == cut[i].bytes.size() ? 0 : static_cast<std::size_t>(r) * part;
      cut[i].count = got->at(i).count;
      cut[i].bytes.assign(whole[i].bytes.begin() + static_cast<std::ptrdiff_t>(from),
                          whole[i].bytes.begin() + static_cast<std::ptrdiff_t>(from + part));
    }
    const auto d = compare_bytes(*got, cut, 1, "the whole batch");
    if (!d.fault.empty()) {
      faults.push_back("not batch-invariant: row " + std::to_string(r) + " alone: " + d.fault);
      return;
    }
  }
}

void CaseBench::check_layout(int variant, std::vector<std::string>& faults) {
  const VariantInfo& v = info(variant);
  if (const std::string bad = problem_->layout_fault(variant); !bad.empty()) {
    faults.push_back("layout " + v.layout + ": " + bad);
    return;
  }
  if (!v.layout_readable || problem_->ineligible(0, options_.device) != nullptr) return;
  problem_->prepare(variant);
  problem_->reset();
  problem_->run_on_layout_of(variant, 0, stream(0));
  stock_error();  // makes stock's outputs on the file's layout
  const auto& plain = counterparts_.at("stock");
  if (!plain.unavailable.empty()) return;
  const auto d = compare_bytes(
      take_outputs(*problem_), plain.outputs, problem_->rows(), "stock on the file's layout");
  if (!d.fault.empty()) faults.push_back("stock on layout " + v.layout + ": " + d.fault);
}

// A captured graph reads what its inputs hold at the replay, not at the capture: other inputs into the same buffers, then
// the same graph, must give what a direct launch gives on them.
void CaseBench::check_replay(int variant, std::vector<std::string>& faults) {
  const auto other = op_.make_problem(index_, problem_->seed() + 1);
  other->use_device(false);
  const auto direct = run(*other, variant, 0, kPoison, faults);
  other->reset();
  for (const Field& f : other->fields()) {
    if (f.dir != Dir::kOut) problem_->set_input(f);
  }
  const auto replayed = run(*problem_, variant, 0, kPoison, faults);
  if (direct && replayed && info(variant).deterministic) {
    const auto d = compare_bytes(*replayed, *direct, problem_->rows(), "a direct launch");
    if (!d.fault.empty()) faults.push_back("replayed on other inputs: " + d.fault);
  }
  rebuild();
}

CaseResult CaseBench::judge(int variant, std::vector<std::string>& unchecked) {
  const VariantInfo& v = info(variant);
  CaseResult result;
  result.name = problem_->case_name();
  result.shape = shape_;
  result.error_bound = problem_->error_bound_of(variant, backend());
  const auto skip = [&](std::string reason, bool lacks_hardware) {
    result.outcome = CaseOutcome::kSkip;
    result.skip_reason = std::move(reason);
    result.lacks_hardware = lacks_hardware;
    return result;
  };
  if (const Why why = problem_->ineligible(variant, options_.device)) {
    // A column that this backend lacks is no failure of the variant either: another machine judges it.
    const bool elsewhere = !on_backend(v, backend());
    const bool not_built = backend() == Backend::kCuda && v.cuda_declared && !v.cuda_built;
    return skip(why,
                elsewhere || not_built ||
                    problem_->ineligible(variant, best_equipped(options_.device)) == nullptr);
  }
  // Its direct launches are judged without --graph.
  if (options_.graph && v.host_sync) return skip("waits for the host: cannot be captured", true);
  const Counterpart& other = counterpart(variant);
  if (!other.unavailable.empty() && v.exactness == Exactness::kBitwise) {
    // What cannot be held against its counterpart has not been shown to be bitwise equal to it.
    return skip("no counterpart: " + other.unavailable, other.lacks_hardware);
  }
  const ReferenceComparison& stock = stock_error();
  const int rows = problem_->rows();
  const std::string counterpart_name = v.exactness == Exactness::kBitwise ? v.bitwise_to : "stock";

  // The bound of each field. In fp32 arithmetic (the exact lane's function, no bound of its own) a variant may not be
  // much worse than stock either.
  const bool like_stock = problem_->judged_numerics(variant, backend()) == Numerics::kExact &&
                          problem_->judged_numerics(0, backend()) == Numerics::kExact &&
                          !v.own_error_bound[static_cast<int>(backend())];
  std::vector<double> bounds(fields_.size(), result.error_bound);
  if (variant != 0 && like_stock && stock.fault.empty()) {
    for (std::size_t i = 0; i < bounds.size(); ++i) {
      bounds[i] = std::min(bounds[i], 2.0 * std::max(stock.rel_l2[i], kRounding));
    }
  }

  const bool batch_invariant =
      v.batch_invariant && !(backend() == Backend::kCuda && v.cuda_batch_dependent);
  check_case(variant, result.faults);
  if (v.exactness == Exactness::kBitwise && !other.fault.empty() && counterpart_name != v.name) {
    result.faults.push_back("its counterpart is at fault: " + other.fault);
  }
  std::optional<Outputs> first;
  std::string repeat_threads;
  const auto add = [&](std::size_t thread_index, const std::vector<std::string>& faults) {
    if (faults.empty()) return;
    if (repeat_threads.empty()) repeat_threads = std::to_string(options_.threads[thread_index]);
    result.faults.insert(result.faults.end(), faults.begin(), faults.end());
  };
  for (std::size_t t = 0; t < options_.threads.size() && result.faults.empty(); ++t) {
    std::vector<std::string> faults;
    const auto got = run(*problem_, variant, t, kPoison, faults);
    if (const std::string where = changed_input(); !where.empty()) {
      faults.push_back("changed its input " + where);
      rebuild();
    }
    if (got) {
      result.bytes = total_bytes(*got);
      result.values = total_values(*got);
      const auto bytes = compare_bytes(
          *got, other.unavailable.empty() ? other.outputs : *got, rows, counterpart_name);
      result.mismatched_bytes = std::max(result.mismatched_bytes, bytes.mismatched_bytes);
      result.max_ulp = std::max(result.max_ulp, bytes.max_ulp);
      const auto error = compare_reference(*got, reference(variant), bounds, rows);
      result.rel_l2 = worse(result.rel_l2, error.worst);
      switch (v.exactness) {
        case Exactness::kBitwise:
          if (!bytes.fault.empty()) faults.push_back("not bitwise equal: " + bytes.fault);
          // Equal bytes to stock say no more than stock's own verdict; to anything else, the bound is asked for as well.
          if (counterpart_name != "stock" && !error.fault.empty()) faults.push_back(error.fault);
          break;
        case Exactness::kSelection:
        case Exactness::kBounded:
          if (!error.fault.empty()) faults.push_back(error.fault);
          break;
        case Exactness::kModelLevel:
          break;  // judged on a model; here only the safety checks and the promises
      }
      if (!first) {
        first = got;
      } else if (batch_invariant) {
        const auto d =
            compare_bytes(*got, *first, rows, std::to_string(options_.threads[0]) + " thread(s)");
        if (!d.fault.empty()) {
          faults.push_back("bits depend on the thread count (" +
                           std::to_string(options_.threads[t]) + "): " + d.fault);
        }
      }
    }
    add(t, faults);
  }
  if (result.faults.empty() && first) {
    std::vector<std::string> faults;
    const auto again = run(*problem_, variant, 0, kOtherPoison, faults);
    if (again) {
      if (std::string missing = find_unwritten(*first, kPoison, *again, kOtherPoison, rows);
          !missing.empty()) {
        faults.push_back(std::move(missing));
      } else if (v.deterministic) {
        const auto d = compare_bytes(*again, *first, rows, "the first run");
        if (!d.fault.empty()) faults.push_back("not deterministic: " + d.fault);
      }
    }
    if (options_.graph && faults.empty()) check_replay(variant, faults);
    if (batch_invariant && faults.empty()) check_rows(variant, *first, faults, unchecked);
    if (!v.layout.empty() && faults.empty()) check_layout(variant, faults);
    add(0, faults);
  }
  result.stock_rel_l2 = stock.worst;
  result.outcome = result.faults.empty() ? CaseOutcome::kPass : CaseOutcome::kFail;
  if (repeat_threads.empty()) repeat_threads = std::to_string(options_.threads[0]);
  for (auto& fault : result.faults) {
    fault = op_.name + " " + v.name + " case " + result.name + " (" + shape_ + "): " + fault +
            "; seed " + std::to_string(problem_->seed()) + "; repeat with: parity_" + op_.name +
            " --variant " + v.name + " --filter '^" + RE2::QuoteMeta(result.name) +
            "$' --rng-seed " + std::to_string(options_.rng_seed) +
            (backend() == Backend::kHost
                 ? " --threads " + repeat_threads
                 : std::string(" --backend cuda") + (options_.graph ? " --graph" : ""));
  }
  return result;
}

}  // namespace

std::size_t VariantResult::count(CaseOutcome outcome) const {
  return static_cast<std::size_t>(std::count_if(
      cases.begin(), cases.end(), [&](const CaseResult& c) { return c.outcome == outcome; }));
}

Exit VariantResult::verdict() const {
  if (count(CaseOutcome::kFail) > 0) return Exit::kCheckFailed;
  if (count(CaseOutcome::kPass) > 0) return Exit::kGood;
  const bool hardware =
      !cases.empty() &&
      std::any_of(cases.begin(), cases.end(), [](const CaseResult& c) { return c.lacks_hardware; });
  return hardware ? Exit::kNoHardware : Exit::kCheckFailed;
}

Exit ParityResult::verdict() const {
  bool any_good = false;
  bool any_hardware = false;
  for (const auto& v : variants) {
    switch (v.verdict()) {
      case Exit::kGood:
        any_good = true;
        break;
      case Exit::kNoHardware:
        any_hardware = true;
        break;
      default:
        return Exit::kCheckFailed;
    }
  }
  if (any_good) return Exit::kGood;
  return any_hardware ? Exit::kNoHardware : Exit::kCheckFailed;
}

ParityResult run_parity(const OpInfo& op,
                        const ParityOptions& options,
                        const std::function<void(const std::string&)>& on_fault,
                        const std::function<void(std::size_t, std::size_t)>& on_progress) {
  if (op.make_problem == nullptr)
    throw UserError(op.name + " has no cases: there is nothing to compare");
  if (options.threads.empty()) throw UserError("no thread counts given");
  const RE2 filter(options.filter, RE2::Quiet);
  if (!filter.ok()) throw UserError("--filter '" + options.filter + "': " + filter.error());
  ParityResult result;
  std::vector<int> chosen;
  for (std::size_t i = 0; i < op.variants.size(); ++i) {
    const VariantInfo& v = op.variants[i];
    if (options.variant.empty() ? on_backend(v, options.device.backend)
                                : v.name == options.variant) {
      chosen.push_back(static_cast<int>(i));
      result.variants.push_back({v, {}, {}});
    }
  }
  if (chosen.empty() && options.variant.empty())
    throw HardwareError(op.name + " has nothing that runs on " + to_string(options.device.backend));
  if (chosen.empty()) {
    std::string names;
    for (const auto& v : op.variants) names += (names.empty() ? "" : ", ") + v.name;
    throw UserError(op.name + " has no variant '" + options.variant + "' here: it has " + names);
  }
  std::vector<std::size_t> cases;
  for (std::size_t i = 0; i < op.case_names.size(); ++i) {
    if (RE2::PartialMatch(op.case_names[i], filter)) cases.push_back(i);
  }
  std::vector<std::unique_ptr<HostPool>> pools;
  for (const int n : options.threads) pools.push_back(std::make_unique<HostPool>(n));
  std::size_t done = 0;
  for (const std::size_t index : cases) {
    CaseBench bench(op, options, pools, index);
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      std::optional<WaitLimit> limit;  // a kernel that hangs must not hang the judge
      if (options.device.backend == Backend::kCuda) limit.emplace("a case of parity");
      result.variants[i].cases.push_back(bench.judge(chosen[i], result.variants[i].unchecked));
      if (on_fault) {
        for (const auto& fault : result.variants[i].cases.back().faults) on_fault(fault);
      }
    }
    if (on_progress) on_progress(++done, cases.size());
  }
  return result;
}

}  // namespace assay
