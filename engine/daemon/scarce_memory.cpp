#include "engine/daemon/scarce_memory.h"

#include <atomic>
#include <cstdlib>
#include <cstring>

namespace assay {
namespace {

constexpr std::size_t kReserve = std::size_t{1} << 20;
std::atomic<void*> reserve{nullptr};

void give_reserve() {
  void* held = reserve.exchange(nullptr);
  if (held == nullptr) throw std::bad_alloc();
  std::free(held);
}

}  // namespace

void hold_reserve() {
  if (reserve.load() != nullptr) return;
  void* held = std::malloc(kReserve);
  if (held == nullptr) return;
  std::memset(held, 1, kReserve);  // not a promise of the kernel, but pages
  std::free(reserve.exchange(held));
  std::set_new_handler(give_reserve);
}

}  // namespace assay
