#include "bench/synthetic.h"

#include <cmath>

#include "kernels/base/rng.h"

namespace assay {
namespace {

// What the sitting's machine is like right now; shared by the arms that are alive.
struct World {
  const Plan plan;
  const NoiseModel noise;
  const double effect;
  Rng rng;
  int pairs_planned;
  int starts = 0;
  double state = 0.0;  // slow wandering of the machine

  double shock() {
    if (noise.heavy <= 0.0) return rng.normal();
    // Student t over its own sd: normal over the root of a chi-square.
    const int df = static_cast<int>(noise.heavy);
    double chi = 0.0;
    for (int i = 0; i < df; ++i) {
      const double z = rng.normal();
      chi += z * z;
    }
    return rng.normal() / std::sqrt(chi / df) / std::sqrt(noise.heavy / (noise.heavy - 2.0));
  }
};

class SyntheticArm final : public Arm {
 public:
  SyntheticArm(World& world, const std::string& variant) : world_(world) {
    identity_.switch_seen = variant;
    identity_.switch_echo = variant;
    identity_.env_bytes = 64;
    identity_.fallback.assign(world.plan.tiers.size(), "");
    identity_.pinned = true;
    const NoiseModel& n = world.noise;
    const bool first = world.starts % 2 == 0;
    if (first) world.state = n.autocorrelation * world.state + n.pair_sd * world.rng.normal();
    // Time of a call in log units: positive is slow.
    slow_ = world.state * (n.autocorrelation > 0.0 ? 1.0 : 0.0);
    slow_ += n.pair_sd / std::sqrt(2.0) * world.shock();
    if (n.tail > 0.0 && world.rng.uniform() < n.tail)
      slow_ += -n.spike_mean * std::log(1.0 - world.rng.uniform());
    slow_ += n.drift * world.starts / (2.0 * world.pairs_planned);
    if (first) slow_ -= n.order_bonus;
    if (variant == world.plan.b && world.plan.a != world.plan.b) slow_ -= world.effect;
    ++world.starts;
  }
  const ArmIdentity& identity() const override { return identity_; }
  Calibration calibrate(int, int) override { return {1, 1}; }
  BlockReply block(const BlockRequest& r) override {
    BlockReply reply;
    // Noise inside a start is far below noise between starts: that is why a start is the replicate.
    reply.wall_s = 1e-3 * r.groups * (r.group_calls + r.extra_calls) *
                   std::exp(slow_ + 0.002 * world_.rng.normal());
    reply.cpu_s = reply.wall_s;
    reply.ran_s = reply.wall_s;
    reply.outer_s = reply.wall_s * 1.01 + 1e-3;
    return reply;
  }
  std::vector<std::vector<std::byte>> outputs(int) override { return {}; }
  Usage finish() override { return {}; }

 private:
  World& world_;
  ArmIdentity identity_;
  double slow_ = 0.0;
};

class SyntheticDevice final : public Device {
 public:
  SyntheticDevice(const Plan& plan, const NoiseModel& noise, double effect, std::uint64_t seed)
      : world_{plan, noise, effect, Rng(seed), static_cast<int>(make_schedule(plan).pairs.size())} {
  }
  std::unique_ptr<Arm> start(const std::string& variant, const std::string&) override {
    return std::make_unique<SyntheticArm>(world_, variant);
  }
  std::string judge(const std::string&,
                    const BlockRequest&,
                    const std::vector<std::vector<std::byte>>&) override {
    return "";
  }
  HostLoad load() const override { return {}; }
  double suspended_s() const override { return 0.0; }
  std::uint64_t fresh_seed() override { return world_.rng.next(); }
  double bytes_moved(int) const override { return 0.0; }
  double flops(int) const override { return 0.0; }

 private:
  World world_;
};

}  // namespace

std::vector<NoiseModel> noise_scenarios(double sd) {
  return {{.name = "normal", .pair_sd = sd},
          {.name = "heavy_tails", .pair_sd = sd, .heavy = 3.0},
          {.name = "spikes", .pair_sd = 0.75 * sd, .tail = 0.1, .spike_mean = 4.0 * sd},
          {.name = "drift", .pair_sd = sd, .drift = 5.0 * sd},
          {.name = "order_effect", .pair_sd = sd, .order_bonus = 0.3 * sd},
          {.name = "drift_and_spikes",
           .pair_sd = 0.75 * sd,
           .tail = 0.1,
           .spike_mean = 4.0 * sd,
           .drift = 5.0 * sd},
          {.name = "wandering", .pair_sd = sd, .autocorrelation = 0.9},
          {.name = "tiny", .pair_sd = 0.1 * sd}};
}

std::unique_ptr<Device> make_synthetic_device(const Plan& plan,
                                              const NoiseModel& noise,
                                              double effect,
                                              std::uint64_t seed) {
  return std::make_unique<SyntheticDevice>(plan, noise, effect, seed);
}

}  // namespace assay
