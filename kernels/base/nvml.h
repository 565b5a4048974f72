// Clocks, power, temperature and throttling of the card, by the driver's management library, which is looked for at run time:
// a machine without it measures all the same and its records say so.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

namespace assay {

struct CardState {
  unsigned sm_mhz = 0;
  unsigned memory_mhz = 0;
  unsigned temperature_c = 0;
  double power_w = 0.0;
  double energy_j = 0.0;               // since the driver was loaded; 0: not counted
  std::uint64_t throttle_reasons = 0;  // NVML's bits; 0: none
  std::uint64_t ecc_uncorrected = 0;
  unsigned processes = 0;  // compute processes on the card, ours among them
};

class CardMonitor {
 public:
  // The first GPU. `library`: a path or soname.
  explicit CardMonitor(const std::string& library = "libnvidia-ml.so.1");
  ~CardMonitor();
  CardMonitor(const CardMonitor&) = delete;
  CardMonitor& operator=(const CardMonitor&) = delete;
  // Why there are no readings; empty when there are.
  const std::string& absent() const { return absent_; }
  // What one question cannot answer stays 0. All 0 when absent.
  CardState read() const;
  std::string driver() const;  // version, or empty

 private:
  struct Library;
  std::unique_ptr<Library> library_;
  std::string absent_;
};

}  // namespace assay
