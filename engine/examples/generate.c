/* A reply to one message, through the C interface:
 *   cc -c generate.c && c++ generate.o libassay_engine.a ... && ./generate MODEL.gguf "SQLite: VACUUM" 40
 * The build makes it as bin/example_generate. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/assay.h"

static int print_token(void* user, int32_t id, const char* text, size_t bytes) {
  (void)id;
  fwrite(text, 1, bytes, stdout);
  fflush(stdout);
  ++*(int*)user;
  return 0;
}

static int fail(const char* what) {
  fprintf(stderr, "example_generate: %s: %s\n", what, assay_error());
  return 1;
}

int main(int argc, char** argv) {
  assay_model* model = NULL;
  assay_session* session = NULL;
  assay_model_options options = {sizeof options, 1, 0, 0};
  int32_t* ids = NULL;
  size_t count = 0;
  int tokens = 0;
  int status = 1;
  assay_stop stop;

  if (argc != 4) {
    fprintf(stderr, "usage: example_generate MODEL.gguf MESSAGE MAX_TOKENS\n");
    return 2;
  }
  if (assay_abi_version() != ASSAY_ABI_VERSION) {
    fprintf(stderr, "example_generate: compiled for version %d, linked to %u\n", ASSAY_ABI_VERSION, assay_abi_version());
    return 1;
  }
  if (assay_model_load(argv[1], &options, &model) != ASSAY_OK) return fail("model");
  /* Once for the number of ids, once for the ids. */
  assay_chat_prompt(model, argv[2], strlen(argv[2]), NULL, 0, &count);
  ids = malloc(count * sizeof *ids);
  if (ids == NULL) goto out;
  if (assay_chat_prompt(model, argv[2], strlen(argv[2]), ids, count, &count) != ASSAY_OK ||
      assay_session_new(model, &session) != ASSAY_OK ||
      assay_session_feed(session, ids, count, NULL) != ASSAY_OK ||
      assay_session_generate(session, NULL, atoi(argv[3]), print_token, &tokens, &stop) != ASSAY_OK) {
    fail("reply");
    goto out;
  }
  printf("\n");
  fprintf(stderr, "%d tokens, %s\n", tokens, stop == ASSAY_STOP_TOKEN ? "complete" : "cut off");
  status = 0;
out:
  free(ids);
  assay_session_free(session);
  assay_model_free(model);
  return status;
}
