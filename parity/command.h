// parity_<op> as a function: main.cpp is built once per op and holds nothing else.
#pragma once

namespace assay {

// Exit code as documented in kernels/base/error.h; 0 cases compared is Exit::kCheckFailed.
int parity_main(const char* op_name, int argc, char** argv);

}  // namespace assay
