// What keeps the daemon's word when memory runs out.
#pragma once
#include <chrono>
#include <new>
#include <thread>

namespace assay {

// A mebibyte that the first failing `new` gives back and tries again: some libraries allocate where nothing may be thrown
// (the destructor of a JSON value does), and they must find some. Called at the start and now and then, to fill it again.
void hold_reserve();

// For what a client waits for: an answer, a last frame, a wake-up. It is tried again for a second, in which a turn may end
// and give some back.
template <class F>
void surely(F&& f) {
  for (int tries = 0;; ++tries) {
    try {
      f();
      return;
    } catch (const std::bad_alloc&) {
      if (tries == 100) throw;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
}

}  // namespace assay
