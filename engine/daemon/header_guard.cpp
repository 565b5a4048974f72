#include "engine/daemon/header_guard.h"

#include <algorithm>
#include <cctype>
#include <string>

namespace assay {
namespace {

bool token_char(char c) {
  constexpr std::string_view kMarks = "!#$%&'*+-.^_`|~";
  return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
         kMarks.find(c) != std::string_view::npos;
}
bool is_token(std::string_view s) {
  return !s.empty() && std::all_of(s.begin(), s.end(), token_char);
}

std::string_view trimmed(std::string_view s) {
  const auto blank = [](char c) { return c == ' ' || c == '\t'; };
  while (!s.empty() && blank(s.front())) s.remove_prefix(1);
  while (!s.empty() && blank(s.back())) s.remove_suffix(1);
  return s;
}
bool same(std::string_view a, std::string_view lower) {
  return a.size() == lower.size() &&
         std::equal(a.begin(), a.end(), lower.begin(), [](char x, char y) {
           return std::tolower(static_cast<unsigned char>(x)) == y;
         });
}

HeadCheck bad(const char* why, TurnCode code = TurnCode::kBadRequest) {
  return {.state = HeadCheck::kBad, .error = {.code = code, .message = why}};
}
HeadCheck too_large(const char* why) { return bad(why, TurnCode::kHeaderTooLarge); }

// "POST /path HTTP/1.1"
bool request_line(std::string_view line, bool& http_1_0) {
  const std::size_t first = line.find(' ');
  const std::size_t last = line.rfind(' ');
  if (first == std::string_view::npos || first == last) return false;
  const std::string_view target = line.substr(first + 1, last - first - 1);
  const std::string_view version = line.substr(last + 1);
  http_1_0 = version == "HTTP/1.0";
  return is_token(line.substr(0, first)) && (http_1_0 || version == "HTTP/1.1") &&
         !target.empty() &&
         std::all_of(target.begin(), target.end(), [](char c) { return c > 0x20 && c < 0x7F; });
}

}  // namespace

HeadCheck check_head(std::string_view received) {
  if (received.empty()) return {};
  const std::string_view seen = received.substr(0, kHeadBytes);
  const std::size_t end = seen.find("\r\n\r\n");
  const std::string_view head =
      seen.substr(0, end == std::string_view::npos ? seen.size() : end + 4);

  // What can be said before the head is whole: a TLS hello, HTTP/0.9 or a lone line end never gets the wait.
  if (!token_char(head[0])) return bad("not an HTTP/1 request");
  for (std::size_t i = 0; i < head.size(); ++i) {
    const auto c = static_cast<unsigned char>(head[i]);
    if (c == '\n' && (i == 0 || head[i - 1] != '\r')) return bad("a line ends without CR");
    if (c == '\r' && i + 1 < head.size() && head[i + 1] != '\n') return bad("a CR without LF");
    if ((c < 0x20 && c != '\t' && c != '\r' && c != '\n') || c == 0x7F)
      return bad("a control character in the header");
  }
  std::size_t line_end = head.find("\r\n");
  bool http_1_0 = false;
  if (line_end != std::string_view::npos && !request_line(head.substr(0, line_end), http_1_0)) {
    return bad("the first line is no HTTP/1.0 or 1.1 request line");
  }
  if (end == std::string_view::npos) {
    if (seen.size() == kHeadBytes) return too_large("the header is over 8 KiB");
    return {};
  }

  std::size_t fields = 0;
  int hosts = 0;
  int lengths = 0;
  int codings = 0;
  for (std::size_t at = line_end + 2; at < end + 2; at = line_end + 2) {
    line_end = head.find("\r\n", at);
    const std::string_view line = head.substr(at, line_end - at);
    if (line[0] == ' ' || line[0] == '\t') return bad("a folded header line");
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos || !is_token(line.substr(0, colon)))
      return bad("a header line without a name");
    if (++fields > kHeadFields) return too_large("more than 100 header fields");
    const std::string_view name = line.substr(0, colon);
    const std::string_view value = trimmed(line.substr(colon + 1));
    if (same(name, "host")) ++hosts;
    if (same(name, "content-length")) {
      ++lengths;
      const bool digits =
          std::all_of(value.begin(), value.end(), [](char c) { return c >= '0' && c <= '9'; });
      if (value.empty() || !digits || value.size() > 18)
        return bad("Content-Length is not one number");
    }
    if (same(name, "transfer-encoding")) {
      ++codings;
      if (!same(value, "chunked")) return bad("Transfer-Encoding is not exactly chunked");
    }
    if (same(name, "expect") && !same(value, "100-continue")) return bad("an unknown expectation");
  }
  if (lengths > 1) return bad("more than one Content-Length");
  if (codings > 1) return bad("more than one Transfer-Encoding");
  if (lengths > 0 && codings > 0) return bad("both Content-Length and Transfer-Encoding");
  if (http_1_0 && codings > 0) return bad("Transfer-Encoding in HTTP/1.0");
  if (hosts > 1 || (hosts == 0 && !http_1_0)) return bad("exactly one Host is needed");
  return {.state = HeadCheck::kWhole, .bytes = end + 4};
}

}  // namespace assay
