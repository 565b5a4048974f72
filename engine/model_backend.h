// The engine behind the daemon: turns on a real model. One compute session serves all sequences; what they leave in the
// cache stays in a PrefixStore.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "engine/forward.h"
#include "engine/grammar.h"
#include "engine/prefix_store.h"
#include "engine/prompt_cache.h"
#include "engine/turn.h"

namespace assay {

struct ModelBackendSettings {
  PrefixStore::Settings prefix = {};
  // A turn that names a prefix is refused (not_ready) until that prefix was captured; a turn of max_tokens 1 captures it.
  bool warm_gate = false;
  std::map<std::string, std::string> proofs = {};  // of ops that a proven set armed, ArmedOp::proof
};

class ModelBackend : public TurnBackend {
 public:
  // Errors as PrefixStore.
  ModelBackend(Model& model, const ModelBackendSettings& settings);
  ~ModelBackend() override;

  const ModelInfo& info() const override { return info_; }
  std::vector<Capability> capabilities() const override;
  std::vector<ArmedOp> armed() const override;
  std::vector<BackendMetric> metrics() const override;
  void on_snapshot(SnapshotListener listener) override { store_.listen(std::move(listener)); }
  std::unique_ptr<PreparedTurn> prepare(TurnRequest request, TurnError& error) override;
  void run(PreparedTurn& turn, TurnSink& sink, const std::atomic<bool>& cancelled) override;
  std::optional<TurnError> embed(const EmbedRequest& request,
                                 EmbedResult& result,
                                 const std::atomic<bool>& cancelled) override;
  std::vector<TokenId> tokenize(std::string_view text, bool special) const override;
  std::optional<TurnError> detokenize(const std::vector<TokenId>& ids,
                                      std::string& bytes) const override;

 private:
  struct Turn;
  class Run;

  // Why frames cannot see one another here; null: they can.
  const char* why_no_block() const;
  void check_prompt(Turn& turn) const;
  void check_frames(const TurnRequest& request) const;
  std::shared_ptr<const Grammar> grammar_of(const TurnRequest& request,
                                            std::vector<Loss>& lost) const;
  void remember(const TurnDone& done);

  Model& model_;
  ModelBackendSettings settings_;
  ModelInfo info_;
  std::shared_ptr<const GrammarVocabulary> vocabulary_;
  std::string embedding_space_;
  int embedding_layer_ = 0;

  // The engine thread's.
  Session session_;
  Sequence scratch_;
  PrefixStore store_;

  mutable std::mutex mutex_;  // for what follows: prepare and metrics come from other threads
  PromptCache prompts_;
  std::set<std::string> warm_;
  std::map<std::string, double> totals_;
  PrefixStore::Count count_;
};

}  // namespace assay
