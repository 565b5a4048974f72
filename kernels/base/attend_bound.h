// What attention in float may be from the double reference when it adds in another order than attend.h.
#pragma once
#include <algorithm>

#include "kernels/base/attend.h"

namespace assay {

// The same roundings in other places: an error of stock's size, but which of the two is luckier is chance, and in a case of
// few numbers by more than the factor 2 that parity otherwise allows. The bound is half of what variant and stock may differ
// by (1e-5), where attend_error_bound is not smaller already.
inline double attend_reordered_bound(int head_dim, int keys) {
  return std::min(attend_error_bound(head_dim, keys), 5e-6);
}

}  // namespace assay
