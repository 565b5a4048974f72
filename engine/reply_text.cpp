#include "engine/reply_text.h"

#include <algorithm>
#include <utility>

namespace assay {

ReplyText::ReplyText(std::vector<std::string> stops) : stops_(std::move(stops)) {
  std::erase_if(stops_, [](const std::string& s) { return s.empty(); });
}

std::string ReplyText::push(std::string_view bytes) {
  if (stopped_) return {};
  held_ += utf8_.push(bytes);
  return settle(false);
}

std::string ReplyText::finish() {
  if (stopped_) return {};
  held_ += utf8_.finish();
  return settle(true);
}

std::string ReplyText::settle(bool last) {
  std::size_t cut = std::string::npos;
  for (const std::string& s : stops_) {
    const std::size_t at = held_.find(s);
    if (at < cut) {
      cut = at;
      stop_ = s;
    }
  }
  if (cut != std::string::npos) {
    stopped_ = true;
    std::string out = held_.substr(0, cut);
    held_.clear();
    return out;
  }
  // The longest tail that begins a stop string waits for the next token.
  std::size_t keep = 0;
  if (!last) {
    for (const std::string& s : stops_) {
      for (std::size_t n = std::min(s.size() - 1, held_.size()); n > keep; --n) {
        if (std::string_view(held_).substr(held_.size() - n) == std::string_view(s).substr(0, n)) {
          keep = n;
          break;
        }
      }
    }
  }
  std::string out = held_.substr(0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return out;
}

}  // namespace assay
