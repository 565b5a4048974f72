// The seed inputs of the fuzz targets.
#pragma once
#include <map>
#include <string>

namespace assay {

// "gguf/smallest.gguf" -> bytes; the folder is the target's name without "fuzz_".
std::map<std::string, std::string> fuzz_seeds();

}  // namespace assay
