#include "traces/convert.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <tuple>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "kernels/base/error.h"

namespace assay {
namespace {

using nlohmann::json;

struct Suffix {
  std::string_view text;
  TraceKind kind;
};
constexpr Suffix kSuffixes[] = {{".mrt", TraceKind::kMrt},
                                {".jsonl", TraceKind::kJsonl},
                                {".csv", TraceKind::kCsv},
                                {".ids", TraceKind::kIds},
                                {".oracleGeneral", TraceKind::kOracleGeneral},
                                {".oracleGeneral.bin", TraceKind::kOracleGeneral}};

std::optional<TraceKind> kind_by_suffix(std::string_view path) {
  for (const auto& s : kSuffixes) {
    if (path.ends_with(s.text)) return s.kind;
  }
  return std::nullopt;
}
std::string suffixes() {
  std::string text;
  for (const auto& s : kSuffixes) text += (text.empty() ? "" : " ") + std::string(s.text);
  return text;
}

// Lines of a text file with their number and byte offset; refuses a line above 64 MiB.
class Lines {
 public:
  explicit Lines(const std::string& path) : path_(path), file_(std::fopen(path.c_str(), "rbe")) {
    if (file_ == nullptr) throw InputError(path + ": " + std::strerror(errno));
  }
  ~Lines() {
    std::free(line_);
    std::fclose(file_);
  }
  Lines(const Lines&) = delete;
  Lines& operator=(const Lines&) = delete;
  bool next(std::string_view& line) {
    offset_ += bytes_;
    errno = 0;
    const ssize_t n = ::getline(&line_, &capacity_, file_);
    if (n < 0) {
      if (std::ferror(file_) != 0)
        throw InputError(path_ + ": byte " + std::to_string(offset_) + ": " + std::strerror(errno));
      bytes_ = 0;
      return false;
    }
    ++number_;
    bytes_ = static_cast<std::uint64_t>(n);
    line = {line_, static_cast<std::size_t>(n)};
    while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.remove_suffix(1);
    return true;
  }
  [[noreturn]] void refuse(const std::string& what) const {
    throw InputError(path_ + ": line " + std::to_string(number_) + ", byte " +
                     std::to_string(offset_) + ": " + what);
  }

 private:
  std::string path_;
  std::FILE* file_;
  char* line_ = nullptr;
  std::size_t capacity_ = 0;
  std::uint64_t offset_ = 0;
  std::uint64_t bytes_ = 0;
  std::uint64_t number_ = 0;
};

void append_number(std::string& out, std::int64_t v) {
  char text[24];
  out.append(text, std::to_chars(text, text + sizeof text, v).ptr);
}
// Shortest text that reads back as the same float; JSON has no NaN or infinity, so those go as a string of their bits.
void append_float(std::string& out, float v) {
  char text[40];
  if (v == 0.0F) {
    out += std::signbit(v) ? "-0.0" : "0";  // "-0" would read back as the integer 0
  } else if (std::isfinite(v)) {
    const auto r = std::to_chars(text, text + sizeof text, v);
    out.append(text, r.ptr);
  } else {
    std::snprintf(text, sizeof text, "\"0x%08x\"", std::bit_cast<std::uint32_t>(v));
    out += text;
  }
}

template <class T, class Append>
void append_rows(std::string& out, const std::vector<T>& values, std::size_t k, Append&& append) {
  out += '[';
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i % k == 0) out += i == 0 ? "[" : "],[";
    if (i % k != 0) out += ',';
    append(out, values[i]);
  }
  out += "]]";
}

const char* weight_name(WeightKind k) {
  return k == WeightKind::kNone ? "none" : k == WeightKind::kF16 ? "f16" : "f32";
}

// An integer of a JSON object in [low, high]; `fallback` when absent.
std::int64_t integer(const Lines& lines,
                     const json& o,
                     const char* key,
                     std::int64_t low,
                     std::int64_t high,
                     std::optional<std::int64_t> fallback = {}) {
  const auto it = o.find(key);
  if (it == o.end()) {
    if (!fallback) lines.refuse(std::string("key \"") + key + "\" is missing");
    return *fallback;
  }
  const bool fits = it->is_number_integer() && (!it->is_number_unsigned() ||
                                                it->get<std::uint64_t>() <= 0x7FFFFFFFFFFFFFFFULL);
  const std::int64_t v = fits ? it->get<std::int64_t>() : 0;
  if (!fits || v < low || v > high) {
    lines.refuse(std::string("\"") + key + "\" must be an integer from " + std::to_string(low) +
                 " to " + std::to_string(high));
  }
  return v;
}

json parse_line(const Lines& lines, std::string_view text) {
  json o = json::parse(text, nullptr, false);
  if (o.is_discarded() || !o.is_object()) lines.refuse("not a JSON object");
  return o;
}

float weight_of(const Lines& lines, const json& v) {
  if (v.is_number()) return v.get<float>();
  if (v.is_string()) {
    const auto& s = v.get_ref<const std::string&>();
    std::uint32_t bits = 0;
    if (s.size() == 10 && s.starts_with("0x")) {
      const auto r = std::from_chars(s.data() + 2, s.data() + 10, bits, 16);
      if (r.ec == std::errc{} && r.ptr == s.data() + 10) return std::bit_cast<float>(bits);
    }
  }
  lines.refuse("a weight is neither a number nor the bits of one (\"0x7fc00000\")");
}

// "e" or "w": [layers][top_k].
template <class T, class Read>
void read_rows(const Lines& lines,
               const json& o,
               const char* key,
               const TraceGeometry& g,
               std::vector<T>& out,
               Read&& read) {
  const auto it = o.find(key);
  if (it == o.end()) lines.refuse(std::string("key \"") + key + "\" is missing");
  if (!it->is_array() || it->size() != static_cast<std::size_t>(g.layers))
    lines.refuse(std::string("\"") + key + "\" must have " + std::to_string(g.layers) + " layers");
  out.clear();
  for (const auto& row : *it) {
    if (!row.is_array() || row.size() != static_cast<std::size_t>(g.top_k)) {
      lines.refuse(std::string("\"") + key + "\" must have " + std::to_string(g.top_k) +
                   " entries a layer");
    }
    for (const auto& v : row) out.push_back(read(v));
  }
}

}  // namespace

const char* to_string(TraceKind kind) {
  switch (kind) {
    case TraceKind::kMrt:
      return "mrt";
    case TraceKind::kJsonl:
      return "jsonl";
    case TraceKind::kCsv:
      return "csv";
    case TraceKind::kIds:
      return "ids";
    case TraceKind::kOracleGeneral:
      return "oracleGeneral";
  }
  return "?";
}

TraceKind kind_of_input(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw InputError(path + ": " + std::strerror(errno));
  char magic[8] = {};
  file.read(magic, sizeof magic);
  if (std::memcmp(magic, "MOETRC1\n", 8) == 0) return TraceKind::kMrt;
  if (const auto kind = kind_by_suffix(path)) return *kind;
  throw InputError(path + ": byte 0: no MOETRC1 magic, and the suffix is none of " + suffixes());
}

TraceKind kind_of_output(const std::string& path) {
  if (const auto kind = kind_by_suffix(path)) return *kind;
  throw UserError(path + ": the suffix must be one of " + suffixes());
}

void mrt_to_jsonl(const std::string& in, const std::string& out) {
  TraceReader reader(in);
  const TraceInfo& info = reader.info();
  const TraceFormat& f = info.format;
  json table = json::array();
  for (const auto& c : info.conversations)
    table.push_back({c.first, c.steps, c.id, static_cast<std::uint32_t>(c.split)});
  const json header = {{"moetrc", 1},
                       {"layers", f.geometry.layers},
                       {"experts", f.geometry.experts},
                       {"top_k", f.geometry.top_k},
                       {"steps", info.steps},
                       {"conversations", info.conversations.size()},
                       {"id_bytes", f.id_bytes},
                       {"weights", weight_name(f.weights)},
                       {"shared_experts", f.shared_experts},
                       {"flags", f.flags},
                       {"expert_bytes", f.expert_bytes},
                       {"label", f.label},
                       {"sealed", info.sealed},
                       {"table", table}};
  std::ofstream file(out, std::ios::binary | std::ios::trunc);
  if (!file) throw Error(Exit::kCheckFailed, out + ": cannot create: " + std::strerror(errno));
  std::string text;
  try {
    text = header.dump() + "\n";
  } catch (const json::type_error&) {
    throw InputError(in + ": byte 56: the label is not UTF-8 and cannot go into JSON");
  }
  const auto k = static_cast<std::size_t>(f.geometry.top_k);
  TraceStep s;
  std::size_t conversation = 0;
  for (std::uint64_t first = 0; first < info.steps;) {
    const RecordBlock b = reader.read(first, window_records(f));
    for (std::size_t i = 0; i < b.count; ++i) {
      b.decode(i, s);
      while (first + i >=
             info.conversations[conversation].first + info.conversations[conversation].steps)
        ++conversation;
      if (s.conversation != info.conversations[conversation].id) {
        throw InputError(in + ": step " + std::to_string(first + i) +
                         ": the record says conversation " + std::to_string(s.conversation) +
                         ", the table says " + std::to_string(info.conversations[conversation].id));
      }
      text += "{\"c\":";
      append_number(text, s.conversation);
      text += ",\"p\":";
      append_number(text, s.position);
      if (s.token != -1) {
        text += ",\"tok\":";
        append_number(text, s.token);
      }
      if (s.phase != Phase::kDecode) text += ",\"ph\":0";
      if (s.flags != 0) {
        text += ",\"fl\":";
        append_number(text, s.flags);
      }
      if (s.row != 0) {
        text += ",\"row\":";
        append_number(text, s.row);
      }
      text += ",\"e\":";
      append_rows(text, s.ids, k, [](std::string& o, std::int32_t v) { append_number(o, v); });
      if (!s.weights.empty()) {
        text += ",\"w\":";
        append_rows(text, s.weights, k, append_float);
      }
      text += "}\n";
    }
    first += b.count;
    file << text;
    text.clear();
  }
  file << text;
  file.close();
  if (!file) throw Error(Exit::kCheckFailed, out + ": cannot write");
}

void jsonl_to_mrt(const std::string& in, const std::string& out) {
  Lines lines(in);
  std::string_view line;
  if (!lines.next(line)) throw InputError(in + ": byte 0: empty file");
  const json h = parse_line(lines, line);
  integer(lines, h, "moetrc", 1, 1);
  TraceFormat f;
  f.geometry.layers = static_cast<int>(integer(lines, h, "layers", 1, 65535));
  f.geometry.experts = static_cast<int>(integer(lines, h, "experts", 1, 65535));
  f.geometry.top_k = static_cast<int>(integer(lines, h, "top_k", 1, 255));
  f.id_bytes =
      static_cast<int>(integer(lines, h, "id_bytes", 1, 2, f.geometry.experts <= 255 ? 1 : 2));
  f.shared_experts = static_cast<int>(integer(lines, h, "shared_experts", 0, 255, 0));
  f.flags = static_cast<std::uint32_t>(integer(lines, h, "flags", 0, 0xFFFFFFFFLL, 0));
  f.expert_bytes =
      static_cast<std::uint64_t>(integer(lines, h, "expert_bytes", 0, 0x7FFFFFFFFFFFFFFFLL, 0));
  const auto steps =
      static_cast<std::uint64_t>(integer(lines, h, "steps", 0, 0x7FFFFFFFFFFFFFFFLL));
  const auto conversations =
      static_cast<std::uint64_t>(integer(lines, h, "conversations", 0, 0xFFFFFFFFLL));
  if (h.contains("label")) {
    if (!h["label"].is_string()) lines.refuse("\"label\" must be a string");
    f.label = h["label"].get<std::string>();
  }
  const bool sealed =
      !h.contains("sealed") || (h["sealed"].is_boolean() && h["sealed"].get<bool>());
  std::vector<Conversation> table;
  if (h.contains("table")) {
    if (!h["table"].is_array() || h["table"].size() != conversations)
      lines.refuse("\"table\" must have one entry a conversation");
    std::uint64_t next = 0;
    for (const auto& e : h["table"]) {
      if (!e.is_array() || e.size() != 4 ||
          !std::all_of(e.begin(), e.end(), [](const json& v) { return v.is_number_unsigned(); }) ||
          e[2].get<std::uint64_t>() > 0xFFFFFFFFULL || e[3].get<std::uint64_t>() > 1 ||
          e[0].get<std::uint64_t>() != next || e[1].get<std::uint64_t>() > steps - next) {
        lines.refuse("\"table\" entries are [first step, steps, id, split] and follow one another");
      }
      table.push_back({next,
                       e[1].get<std::uint64_t>(),
                       e[2].get<std::uint32_t>(),
                       static_cast<Split>(e[3].get<std::uint32_t>())});
      next += table.back().steps;
    }
    if (next != steps) lines.refuse("\"table\" does not cover \"steps\"");
  }
  std::optional<WeightKind> weights;
  if (h.contains("weights")) {
    const json& w = h["weights"];
    for (const auto k : {WeightKind::kNone, WeightKind::kF16, WeightKind::kF32}) {
      if (w.is_string() && w.get_ref<const std::string&>() == weight_name(k)) weights = k;
    }
    if (!weights) lines.refuse("\"weights\" must be none, f16 or f32");
  }
  std::unique_ptr<TraceWriter> writer;
  const auto open = [&](WeightKind kind) {
    f.weights = kind;
    try {
      writer = std::make_unique<TraceWriter>(out, f);
    } catch (const UserError& e) {
      lines.refuse(e.what());
    }
  };
  TraceStep s;
  std::uint64_t count = 0;
  std::size_t entry = 0;
  std::uint64_t runs = 0;
  std::uint32_t last = 0;
  for (; lines.next(line);) {
    if (line.empty()) continue;
    const json o = parse_line(lines, line);
    if (writer == nullptr)
      open(weights.value_or(o.contains("w") ? WeightKind::kF32 : WeightKind::kNone));
    s.conversation = static_cast<std::uint32_t>(integer(lines, o, "c", 0, 0xFFFFFFFFLL));
    s.position = static_cast<std::uint32_t>(integer(lines, o, "p", 0, 0xFFFFFFFFLL));
    s.token = static_cast<std::int32_t>(integer(lines, o, "tok", -0x80000000LL, 0x7FFFFFFFLL, -1));
    s.phase = static_cast<Phase>(integer(lines, o, "ph", 0, 1, 1));
    s.flags = static_cast<std::uint8_t>(integer(lines, o, "fl", 0, 255, 0));
    s.row = static_cast<std::uint16_t>(integer(lines, o, "row", 0, 65535, 0));
    read_rows(lines, o, "e", f.geometry, s.ids, [&](const json& v) -> std::int32_t {
      if (!v.is_number_integer() || v.get<std::int64_t>() < -1 ||
          v.get<std::int64_t>() >= f.geometry.experts) {
        lines.refuse("\"e\": expert id " + v.dump() + " is not below " +
                     std::to_string(f.geometry.experts));
      }
      return v.get<std::int32_t>();
    });
    s.weights.clear();
    if (f.weights != WeightKind::kNone) {
      read_rows(
          lines, o, "w", f.geometry, s.weights, [&](const json& v) { return weight_of(lines, v); });
    } else if (o.contains("w")) {
      lines.refuse("\"w\" in a trace whose weights are none");
    }
    if (count == steps) lines.refuse("more steps than the header's " + std::to_string(steps));
    if (table.empty()) {
      if (count == 0 || s.conversation != last) {
        writer->begin_conversation(s.conversation, Split::kTrain);
        ++runs;
      }
      last = s.conversation;
    } else {
      while (entry < table.size() && table[entry].first <= count) {
        writer->begin_conversation(table[entry].id, table[entry].split);
        ++entry;
      }
      if (table[entry - 1].id != s.conversation)
        lines.refuse("\"c\" differs from the table's id " + std::to_string(table[entry - 1].id));
    }
    try {
      writer->append(s);
    } catch (const UserError& e) {
      lines.refuse(e.what());
    }
    ++count;
  }
  if (count != steps)
    lines.refuse("the header promises " + std::to_string(steps) + " steps, the file has " +
                 std::to_string(count));
  if (table.empty() && runs != conversations) {
    lines.refuse("the header promises " + std::to_string(conversations) +
                 " conversations, the steps make " + std::to_string(runs));
  }
  if (writer == nullptr) open(weights.value_or(WeightKind::kNone));
  for (; entry < table.size(); ++entry)
    writer->begin_conversation(table[entry].id, table[entry].split);
  if (sealed) {
    writer->seal();
  } else {
    writer->leave_unsealed();
  }
}

void csv_to_mrt(const std::string& in, const std::string& out) {
  constexpr std::string_view kColumns =
      "turn,phase,step,layer,slot,expert,weight,residency,expert_bytes";
  struct Row {
    std::uint32_t turn, phase, step, layer, slot, expert;
    float weight;
    auto key() const { return std::tuple(turn, phase, step, layer, slot); }
  };
  Lines lines(in);
  std::string_view line;
  std::map<std::string, std::uint64_t, std::less<>>
      named;  // n_layer=30 and the like from the comments
  std::uint64_t bytes_sum = 0;
  std::uint64_t bytes_layers = 0;
  std::string model;
  std::vector<Row> rows;
  bool header = false;
  while (lines.next(line)) {
    if (line.empty()) continue;
    if (line.front() == '#') {
      for (std::size_t at = 1; at < line.size();) {
        const std::size_t end = std::min(line.find(' ', at), line.size());
        const std::string_view word = line.substr(at, end - at);
        at = end + 1;
        const std::size_t eq = word.find('=');
        if (eq == std::string_view::npos) continue;
        const std::string_view key = word.substr(0, eq);
        const std::string_view value = word.substr(eq + 1);
        if (key == "model") model = std::string(value.substr(value.rfind('/') + 1));
        std::uint64_t number = 0;
        const auto r = std::from_chars(value.data(), value.data() + value.size(), number);
        if (r.ec != std::errc{} || r.ptr != value.data() + value.size()) continue;
        if (key == "expert_bytes") {
          bytes_sum += number;
          ++bytes_layers;
        } else {
          named[std::string(key)] = number;
        }
      }
      continue;
    }
    if (!header) {
      if (line != kColumns) lines.refuse("columns must be " + std::string(kColumns));
      header = true;
      continue;
    }
    std::uint32_t field[6] = {};
    const char* p = line.data();
    const char* const end = line.data() + line.size();
    for (int i = 0; i < 6; ++i) {
      const auto r = std::from_chars(p, end, field[i]);
      if (r.ec != std::errc{} || r.ptr == end || *r.ptr != ',')
        lines.refuse("column " + std::to_string(i + 1) + " is not a whole number");
      p = r.ptr + 1;
    }
    float weight = 0;
    const auto r = std::from_chars(p, end, weight);
    if (r.ec != std::errc{} || (r.ptr != end && *r.ptr != ','))
      lines.refuse("column 7 (weight) is not a number");
    if (std::count(r.ptr, end, ',') != 2) lines.refuse("a row has 9 columns");
    if (field[1] > 1)
      lines.refuse("phase " + std::to_string(field[1]) + ", valid are 0 (prefill) and 1 (decode)");
    if (field[3] > 65534) lines.refuse("layer " + std::to_string(field[3]) + " is out of range");
    if (field[4] > 254) lines.refuse("slot " + std::to_string(field[4]) + " is out of range");
    if (field[5] > 65534) lines.refuse("expert " + std::to_string(field[5]) + " is out of range");
    const auto bound = [&](const char* key, std::uint32_t value, const char* what) {
      const auto it = named.find(key);
      if (it != named.end() && value >= it->second) {
        lines.refuse(std::string(what) + " " + std::to_string(value) + " is not below " + key +
                     "=" + std::to_string(it->second));
      }
    };
    bound("n_layer", field[3], "layer");
    bound("n_expert", field[5], "expert");
    bound("n_expert_used", field[4], "slot");
    rows.push_back({field[0], field[1], field[2], field[3], field[4], field[5], weight});
  }
  if (rows.empty()) throw InputError(in + ": byte 0: no rows");
  // Captures write prefill layer by layer and decode step by step; a trace is step by step.
  std::stable_sort(
      rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.key() < b.key(); });
  TraceFormat f;
  std::uint32_t layer = 0;
  std::uint32_t slot = 0;
  std::uint32_t expert = 0;
  for (const auto& r : rows) {
    layer = std::max(layer, r.layer);
    slot = std::max(slot, r.slot);
    expert = std::max(expert, r.expert);
  }
  const auto size = [&](const char* key, std::uint32_t largest) {
    const auto it = named.find(key);
    return static_cast<int>(it != named.end() ? std::min<std::uint64_t>(it->second, 65536)
                                              : largest + 1);
  };
  f.geometry = {size("n_layer", layer), size("n_expert", expert), size("n_expert_used", slot)};
  f.id_bytes = f.geometry.experts <= 255 ? 1 : 2;
  f.weights = WeightKind::kF32;
  f.expert_bytes = bytes_layers != 0 ? (bytes_sum + bytes_layers / 2) / bytes_layers : 0;
  f.label = model.substr(0, 68);
  std::unique_ptr<TraceWriter> writer;
  try {
    writer = std::make_unique<TraceWriter>(out, f);
  } catch (const UserError& e) {
    throw InputError(in + ": byte 0: " + e.what());
  }
  TraceStep s;
  std::uint32_t position = 0;
  for (std::size_t i = 0; i < rows.size();) {
    const Row& head = rows[i];
    if (i == 0 || rows[i - 1].turn != head.turn) {
      writer->begin_conversation(head.turn, Split::kTrain);
      position = 0;
    }
    s.position = position++;
    s.phase = static_cast<Phase>(head.phase);
    s.ids.assign(f.ids_per_step(), kPaddingId);
    s.weights.assign(f.ids_per_step(), 0.0F);
    const auto where = "turn " + std::to_string(head.turn) + " step " + std::to_string(head.step);
    for (; i < rows.size() && rows[i].turn == head.turn && rows[i].phase == head.phase &&
           rows[i].step == head.step;
         ++i) {
      const std::size_t at =
          std::size_t{rows[i].layer} * static_cast<std::size_t>(f.geometry.top_k) + rows[i].slot;
      if (s.ids[at] != kPaddingId) {
        throw InputError(in + ": " + where + ": layer " + std::to_string(rows[i].layer) + " slot " +
                         std::to_string(rows[i].slot) + " appears twice");
      }
      s.ids[at] = static_cast<std::int32_t>(rows[i].expert);
      s.weights[at] = rows[i].weight;
    }
    try {
      writer->append(s);
    } catch (const UserError& e) {
      throw InputError(in + ": " + where + ": " + e.what());
    }
  }
  writer->seal();
}

}  // namespace assay
