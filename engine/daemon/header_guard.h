// Rules on a request's raw head that the HTTP library does not hold: what two programs in line could read differently is
// refused, and nothing is waited for that cannot become a request.
#pragma once
#include <cstddef>
#include <string_view>

#include "engine/turn.h"

namespace assay {

inline constexpr std::size_t kHeadBytes = 8 * 1024;
inline constexpr std::size_t kHeadFields = 100;

struct HeadCheck {
  enum State { kMore, kWhole, kBad } state = kMore;
  std::size_t bytes = 0;  // kWhole: of the head, the empty line included
  TurnError error = {};   // kBad: answer it and close
};
// `received` begins where a request begins and may go on behind its head.
HeadCheck check_head(std::string_view received);

}  // namespace assay
