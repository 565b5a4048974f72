// The engine's interface with a script instead of a model, for tests of everything around it. A token is a byte string;
// ids below 256 are bytes. The last message is the script, as JSON, or is echoed word by word:
//   {"tokens": ["He", "llo", {"hex": "e282"}], "repeat": 1, "delay_ms": 0, "prefill_ms": 0, "chunks": 1, "margin": 13.1,
//    "calls": [{"name": "f", "arguments": {}}], "reasoning": "..", "stop": "stop_token",
//    "fail": "numeric_error", "fail_at": 3, "throw_at": 3}
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "engine/turn.h"

namespace assay {

class FakeBackend : public TurnBackend {
 public:
  explicit FakeBackend(int context = 4096);

  const ModelInfo& info() const override { return info_; }
  std::vector<Capability> capabilities() const override;
  std::vector<ArmedOp> armed() const override;
  std::vector<BackendMetric> metrics() const override;
  std::unique_ptr<PreparedTurn> prepare(TurnRequest request, TurnError& error) override;
  void run(PreparedTurn& turn, TurnSink& sink, const std::atomic<bool>& cancelled) override;
  std::optional<TurnError> embed(const EmbedRequest& request,
                                 EmbedResult& result,
                                 const std::atomic<bool>& cancelled) override;
  std::vector<TokenId> tokenize(std::string_view text, bool special) const override;
  std::optional<TurnError> detokenize(const std::vector<TokenId>& ids,
                                      std::string& bytes) const override;

 private:
  ModelInfo info_;
  std::atomic<std::int64_t> turns_{0};
  std::map<std::string, int> sessions_;  // tokens that each one holds; engine thread
};

}  // namespace assay
