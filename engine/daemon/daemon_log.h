// The log of a program that must not stop because nobody reads its log.
#pragma once

namespace assay {

// Lines go to stderr as before while it takes them; one that would have to wait is dropped, and the next that goes out is
// preceded by how many were. Keeps the level.
void use_dropping_log();

}  // namespace assay
