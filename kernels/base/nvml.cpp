#include "kernels/base/nvml.h"

#include <dlfcn.h>

namespace assay {
namespace {

// The part of nvml.h that is used: its functions return 0 for success, and their names and types are stable.
using Device = void*;
struct Memory {
  unsigned pid;
  unsigned long long used;
  unsigned gpu_instance;
  unsigned compute_instance;
};
constexpr int kClockSm = 1;
constexpr int kClockMemory = 2;
constexpr int kCoreTemperature = 0;
constexpr int kUncorrected = 1;
constexpr int kSinceReset = 0;
constexpr int kNotEnoughRoom = 7;  // the answer is the count alone

template <class F>
void find(void* handle, const char* name, F& function) {
  function = reinterpret_cast<F>(::dlsym(handle, name));
}

}  // namespace

struct CardMonitor::Library {
  void* handle = nullptr;
  Device device = nullptr;
  bool started = false;
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*device_at)(unsigned, Device*) = nullptr;
  int (*clock)(Device, int, unsigned*) = nullptr;
  int (*temperature)(Device, int, unsigned*) = nullptr;
  int (*power)(Device, unsigned*) = nullptr;             // milliwatts
  int (*energy)(Device, unsigned long long*) = nullptr;  // millijoules
  int (*reasons)(Device, unsigned long long*) = nullptr;
  int (*ecc)(Device, int, int, unsigned long long*) = nullptr;
  int (*processes)(Device, unsigned*, Memory*) = nullptr;
  int (*driver)(char*, unsigned) = nullptr;

  ~Library() {
    if (started && shutdown != nullptr) shutdown();
    if (handle != nullptr) ::dlclose(handle);
  }
};

CardMonitor::CardMonitor(const std::string& library) : library_(std::make_unique<Library>()) {
  Library& l = *library_;
  l.handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (l.handle == nullptr) {
    absent_ = library + " is not on this machine";
    return;
  }
  find(l.handle, "nvmlInit_v2", l.init);
  find(l.handle, "nvmlShutdown", l.shutdown);
  find(l.handle, "nvmlDeviceGetHandleByIndex_v2", l.device_at);
  find(l.handle, "nvmlDeviceGetClockInfo", l.clock);
  find(l.handle, "nvmlDeviceGetTemperature", l.temperature);
  find(l.handle, "nvmlDeviceGetPowerUsage", l.power);
  find(l.handle, "nvmlDeviceGetTotalEnergyConsumption", l.energy);
  find(l.handle, "nvmlDeviceGetCurrentClocksThrottleReasons", l.reasons);
  find(l.handle, "nvmlDeviceGetTotalEccErrors", l.ecc);
  find(l.handle, "nvmlDeviceGetComputeRunningProcesses_v3", l.processes);
  find(l.handle, "nvmlSystemGetDriverVersion", l.driver);
  if (l.init == nullptr || l.device_at == nullptr) {
    absent_ = library + " lacks nvmlInit_v2 or nvmlDeviceGetHandleByIndex_v2";
    return;
  }
  l.started = l.init() == 0;
  if (!l.started || l.device_at(0, &l.device) != 0) {
    l.device = nullptr;
    absent_ = library + " finds no card";
  }
}

CardMonitor::~CardMonitor() = default;

CardState CardMonitor::read() const {
  CardState s;
  if (!absent_.empty()) return s;
  const Library& l = *library_;
  const auto ask = [&](auto function, auto& answer, auto... arguments) {
    auto value = answer;
    if (function != nullptr && function(l.device, arguments..., &value) == 0) answer = value;
  };
  ask(l.clock, s.sm_mhz, kClockSm);
  ask(l.clock, s.memory_mhz, kClockMemory);
  ask(l.temperature, s.temperature_c, kCoreTemperature);
  unsigned milliwatts = 0;
  ask(l.power, milliwatts);
  s.power_w = milliwatts * 1e-3;
  unsigned long long millijoules = 0;
  ask(l.energy, millijoules);
  s.energy_j = static_cast<double>(millijoules) * 1e-3;
  unsigned long long bits = 0;
  ask(l.reasons, bits);
  s.throttle_reasons = bits;
  unsigned long long errors = 0;
  ask(l.ecc, errors, kUncorrected, kSinceReset);
  s.ecc_uncorrected = errors;
  unsigned count = 0;
  if (l.processes != nullptr) {
    const int code = l.processes(l.device, &count, nullptr);
    if (code == 0 || code == kNotEnoughRoom) s.processes = count;
  }
  return s;
}

std::string CardMonitor::driver() const {
  char text[96] = {};
  if (!absent_.empty() || library_->driver == nullptr || library_->driver(text, sizeof text) != 0)
    return "";
  return text;
}

}  // namespace assay
