// Runs one of the plotting scripts of scripts/ with an interpreter that has numpy and matplotlib.
#pragma once
#include <string>
#include <vector>

namespace assay {

// script: file name under scripts/, found from the executable's folder upwards, else from the working directory. The script's
// output goes to stderr. Error(1) naming what to install when no interpreter has both packages, or when the script fails.
void run_plot_script(const std::string& script, const std::vector<std::string>& arguments);

}  // namespace assay
