// A composite op's stock: the chain of part ops, which lives with the caller because no op may include another.
#pragma once

namespace assay {

struct Chain {
  void (*run)(void* state) = nullptr;
  void* state = nullptr;
  void operator()() const { run(state); }
};

}  // namespace assay
