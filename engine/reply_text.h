// From token bytes to the text of a reply: whole UTF-8 characters only, cut at the first stop string.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer.h"

namespace assay {

class ReplyText {
 public:
  // Empty stop strings are ignored.
  explicit ReplyText(std::vector<std::string> stops = {});
  // What became certain: whole characters that can no longer be part of a stop string. Nothing after stopped().
  std::string push(std::string_view bytes);
  // End of the reply: what was held back; an unfinished character becomes one U+FFFD.
  std::string finish();
  bool stopped() const { return stopped_; }
  const std::string& stop() const { return stop_; }  // the one that was met

 private:
  std::string settle(bool last);

  std::vector<std::string> stops_;
  Utf8Stream utf8_;
  std::string held_;  // characters that may begin a stop string
  std::string stop_;
  bool stopped_ = false;
};

}  // namespace assay
