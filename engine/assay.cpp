#include "engine/assay.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <new>
#include <string>

#include "engine/chat_template.h"
#include "engine/forward.h"
#include "engine/sampler.h"
#include "kernels/base/build_id.h"
#include "kernels/base/error.h"

// NOLINTBEGIN(readability-identifier-naming): the names of the C header
struct assay_model {
  std::shared_ptr<assay::Model> model;
};
struct assay_session {
  std::shared_ptr<assay::Model> model;  // stays as long as its sessions
  std::unique_ptr<assay::Session> session;
  std::span<const float> logits = {};  // behind the last token; empty: nothing was fed
};
// NOLINTEND(readability-identifier-naming)

namespace {

constexpr int kSlack = 64;  // what assay_session_cut promises

// The calling thread's last message.
std::string& error_text() {
  thread_local std::string text;
  return text;
}

// Runs f and turns what it throws into a status.
template <class F>
assay_status guarded(F&& f) {
  try {
    error_text().clear();
    return f();
  } catch (const assay::Error& e) {
    error_text() = e.what();
    return e.code() == assay::Exit::kUsage          ? ASSAY_USAGE
           : e.code() == assay::Exit::kInputRefused ? ASSAY_REFUSED
                                                    : ASSAY_FAILED;
  } catch (const std::bad_alloc&) {
    return ASSAY_OUT_OF_MEMORY;
  } catch (const std::exception& e) {
    error_text() = e.what();
    return ASSAY_INTERNAL;
  } catch (...) {
    return ASSAY_INTERNAL;
  }
}

void need(bool given, const char* what) {
  if (!given) throw assay::UserError(std::string(what) + " is missing");
}
// A caller's struct, whose first field is its size: at least what version 1 had.
template <class T>
void need_size(const T& options, const char* what) {
  if (options.size < sizeof(T))
    throw assay::UserError(std::string(what) + ": size is not filled in");
}

template <class From, class To>
assay_status copy_out(const From& from, To* to, std::size_t capacity, std::size_t* count) {
  need(count != nullptr, "count");
  need(to != nullptr || capacity == 0, "the buffer");
  *count = from.size();
  if (from.size() > capacity) {
    error_text() = "the buffer holds " + std::to_string(capacity) + ", " +
                   std::to_string(from.size()) + " are needed";
    return ASSAY_TOO_SMALL;
  }
  std::copy(from.begin(), from.end(), to);
  return ASSAY_OK;
}

}  // namespace

extern "C" {

uint32_t assay_abi_version(void) { return ASSAY_ABI_VERSION; }
const char* assay_build(void) {
  static const std::string line = assay::build_line();
  return line.c_str();
}
const char* assay_error(void) { return error_text().c_str(); }

assay_status assay_model_load(const char* path,
                              const assay_model_options* options,
                              assay_model** model) {
  return guarded([&] {
    need(path != nullptr, "path");
    need(model != nullptr, "model");
    *model = nullptr;
    assay::ModelSettings settings;
    if (options != nullptr) {
      need_size(*options, "options");
      if (options->threads < 0 || options->threads > 256)
        throw assay::UserError("threads: must be 0..256");
      if (options->context < 0) throw assay::UserError("context: must be at least 0");
      settings.numerics = options->fast != 0 ? assay::Numerics::kFast : assay::Numerics::kExact;
      settings.threads = options->threads;
      settings.context = options->context;
    }
    *model = new assay_model{std::make_shared<assay::Model>(path, settings)};
    return ASSAY_OK;
  });
}
void assay_model_free(assay_model* model) { delete model; }
int32_t assay_model_vocabulary(const assay_model* model) {
  return model == nullptr ? 0 : model->model->config().vocab;
}
int32_t assay_model_context(const assay_model* model) {
  return model == nullptr ? 0 : model->model->context();
}

assay_status assay_tokenize(const assay_model* model,
                            const char* text,
                            size_t bytes,
                            int32_t special,
                            int32_t bos,
                            int32_t* ids,
                            size_t capacity,
                            size_t* count) {
  return guarded([&] {
    need(model != nullptr, "model");
    need(text != nullptr || bytes == 0, "text");
    const auto mode = special != 0 ? assay::SpecialMode::kAll : assay::SpecialMode::kNone;
    return copy_out(
        model->model->tokenizer().encode({text, bytes}, bos != 0, mode), ids, capacity, count);
  });
}
assay_status assay_detokenize(const assay_model* model,
                              const int32_t* ids,
                              size_t count,
                              char* text,
                              size_t capacity,
                              size_t* bytes) {
  return guarded([&] {
    need(model != nullptr, "model");
    need(ids != nullptr || count == 0, "ids");
    return copy_out(model->model->tokenizer().decode({ids, count}), text, capacity, bytes);
  });
}
assay_status assay_chat_prompt(const assay_model* model,
                               const char* message,
                               size_t bytes,
                               int32_t* ids,
                               size_t capacity,
                               size_t* count) {
  return guarded([&] {
    need(model != nullptr, "model");
    need(message != nullptr || bytes == 0, "message");
    return copy_out(assay::encode_user_prompt(model->model->tokenizer(), {message, bytes}),
                    ids,
                    capacity,
                    count);
  });
}

assay_status assay_session_new(assay_model* model, assay_session** session) {
  return guarded([&] {
    need(model != nullptr, "model");
    need(session != nullptr, "session");
    *session = nullptr;
    *session =
        new assay_session{model->model, std::make_unique<assay::Session>(*model->model, kSlack)};
    return ASSAY_OK;
  });
}
void assay_session_free(assay_session* session) { delete session; }
int32_t assay_session_position(const assay_session* session) {
  return session == nullptr ? 0 : session->session->position();
}
assay_status assay_session_cut(assay_session* session, int32_t position) {
  return guarded([&] {
    need(session != nullptr, "session");
    auto& sequence = session->session->sequence();
    if (!sequence.can_cut(position)) {
      throw assay::UserError("position " + std::to_string(position) + ": the session at " +
                             std::to_string(sequence.position) + " cannot be cut back to it");
    }
    sequence.cut(position);
    session->logits = {};
    return ASSAY_OK;
  });
}
assay_status assay_session_feed(assay_session* session,
                                const int32_t* ids,
                                size_t count,
                                float* logits) {
  return guarded([&] {
    need(session != nullptr, "session");
    need(ids != nullptr && count > 0, "ids");
    session->logits = {};
    session->logits = session->session->feed({ids, count});
    if (logits != nullptr) std::copy(session->logits.begin(), session->logits.end(), logits);
    return ASSAY_OK;
  });
}

assay_status assay_session_generate(assay_session* session,
                                    const assay_sampling* sampling,
                                    int32_t max_tokens,
                                    assay_token_fn token,
                                    void* user,
                                    assay_stop* stop) {
  return guarded([&] {
    need(session != nullptr, "session");
    need(!session->logits.empty(), "something to go on from (assay_session_feed)");
    if (max_tokens < 1) throw assay::UserError("max_tokens: must be at least 1");
    assay::SamplerSettings settings{.greedy = true};
    if (sampling != nullptr) {
      need_size(*sampling, "sampling");
      settings = {.temperature = sampling->temperature,
                  .top_k = sampling->top_k,
                  .top_p = sampling->top_p,
                  .seed = sampling->seed};
    }
    assay::Sampler sampler(settings);
    assay::StreamingDecoder decoder(session->model->tokenizer());
    assay_stop reason = ASSAY_STOP_LENGTH;
    for (int32_t n = 0; n < max_tokens; ++n) {
      const assay::TokenId id = sampler.sample(session->logits);
      const bool last = session->model->tokenizer().is_stop(id);
      std::string text = decoder.push(id);
      if (last || n + 1 == max_tokens) text += decoder.finish();
      const bool stopped = token != nullptr && token(user, id, text.data(), text.size()) != 0;
      if (last || stopped) {
        reason = last ? ASSAY_STOP_TOKEN : ASSAY_STOP_CALLER;
        break;
      }
      if (session->session->room() == 0) {
        reason = ASSAY_STOP_CONTEXT;
        break;
      }
      session->logits = {};
      session->logits = session->session->feed({&id, 1});
    }
    if (stop != nullptr) *stop = reason;
    return ASSAY_OK;
  });
}

}  // extern "C"
