/* The engine's C interface. Opaque handles, plain numbers, no exceptions: every function says by its status what
 * happened, and assay_error() says it in words, for the calling thread, until its next call.
 *
 * The version grows by one when a program compiled against an older header would no longer work; functions and fields at
 * the end of a struct (whose `size` the caller fills in) may be added without that.
 *
 * A model and its sessions are used by one thread at a time; different models are independent. Handles may be freed in
 * any order. engine/examples/generate.c is a whole program.
 */
#ifndef ASSAY_ENGINE_ASSAY_H
#define ASSAY_ENGINE_ASSAY_H
/* NOLINTBEGIN: C names, C headers */
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ASSAY_ABI_VERSION 1

/* The version of the library that was linked. A program checks that it equals ASSAY_ABI_VERSION. */
uint32_t assay_abi_version(void);
/* Version, commit and compiler, one line. */
const char* assay_build(void);

typedef enum assay_status {
  ASSAY_OK = 0,
  ASSAY_FAILED = 1,  /* a number that is none, an output that cannot be written */
  ASSAY_USAGE = 2,   /* an argument is at fault */
  ASSAY_REFUSED = 3, /* a file or text is at fault */
  ASSAY_OUT_OF_MEMORY = 4,
  ASSAY_TOO_SMALL = 5, /* the caller's buffer; the count says what is needed */
  ASSAY_INTERNAL = 6
} assay_status;
/* Why the last call on this thread did not return ASSAY_OK; "" after one that did. */
const char* assay_error(void);

typedef struct assay_model assay_model;
typedef struct assay_session assay_session;

typedef struct assay_model_options {
  uint32_t size;   /* sizeof(assay_model_options) */
  int32_t fast;    /* 1: int8 activations, 0: exact */
  int32_t threads; /* 0: all of the machine */
  int32_t context; /* tokens; 0: the trained context, at most 4096 */
} assay_model_options;

/* options: null for exact numerics and defaults. */
assay_status assay_model_load(const char* path,
                              const assay_model_options* options,
                              assay_model** model);
void assay_model_free(assay_model* model); /* null is fine */
int32_t assay_model_vocabulary(const assay_model* model);
int32_t assay_model_context(const assay_model* model);

/* special: 1 recognises special tokens in the text, 0 takes all of it as text. bos: 1 puts the BOS token in front.
 * *count is the number of ids, also when capacity is too small (ASSAY_TOO_SMALL) or ids null with capacity 0. */
assay_status assay_tokenize(const assay_model* model,
                            const char* text,
                            size_t bytes,
                            int32_t special,
                            int32_t bos,
                            int32_t* ids,
                            size_t capacity,
                            size_t* count);
/* Bytes, not necessarily whole characters, without a NUL. Control tokens give nothing. */
assay_status assay_detokenize(const assay_model* model,
                              const int32_t* ids,
                              size_t count,
                              char* text,
                              size_t capacity,
                              size_t* bytes);
/* The ids of one user message in the model's chat format, ready for a reply. */
assay_status assay_chat_prompt(const assay_model* model,
                               const char* message,
                               size_t bytes,
                               int32_t* ids,
                               size_t capacity,
                               size_t* count);

assay_status assay_session_new(assay_model* model, assay_session** session);
void assay_session_free(assay_session* session);              /* null is fine */
int32_t assay_session_position(const assay_session* session); /* tokens fed so far */
/* Back to `position` tokens: to 0 always, else at most 64 back once the sequence is longer than the local window. */
assay_status assay_session_cut(assay_session* session, int32_t position);
/* Appends ids. logits: null, or room for assay_model_vocabulary floats, which are those behind the last id. */
assay_status assay_session_feed(assay_session* session,
                                const int32_t* ids,
                                size_t count,
                                float* logits);

typedef struct assay_sampling {
  uint32_t size;      /* sizeof(assay_sampling) */
  int32_t top_k;      /* 0: all */
  double temperature; /* 0: always the likeliest token */
  double top_p;       /* 1: all */
  uint64_t seed;
} assay_sampling;
typedef enum assay_stop {
  ASSAY_STOP_TOKEN = 0,  /* the model ended its reply */
  ASSAY_STOP_LENGTH = 1, /* max_tokens */
  ASSAY_STOP_CONTEXT = 2,
  ASSAY_STOP_CALLER = 3 /* the callback asked for it */
} assay_stop;
/* Gets every token: its id and what it adds to the text, whole UTF-8 characters only (maybe none). Not 0 ends the reply. */
typedef int (*assay_token_fn)(void* user, int32_t id, const char* text, size_t bytes);
/* Writes a reply behind what was fed (feed something first). sampling: null for the likeliest token. */
assay_status assay_session_generate(assay_session* session,
                                    const assay_sampling* sampling,
                                    int32_t max_tokens,
                                    assay_token_fn token,
                                    void* user,
                                    assay_stop* stop);

#ifdef __cplusplus
}
#endif
/* NOLINTEND */
#endif
