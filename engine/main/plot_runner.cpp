#include "engine/main/plot_runner.h"

#include <cerrno>
#include <filesystem>

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/base/error.h"

extern char** environ;

namespace assay {
namespace {

// Exit status of a child, -1 when it could not be started or died by a signal.
int run_child(const std::vector<std::string>& command, bool quiet) {
  std::vector<char*> argv;
  for (const auto& a : command) argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  if (quiet) {
    posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
  } else {
    posix_spawn_file_actions_adddup2(&actions, 2, 1);  // stdout carries only the program's answer
  }
  pid_t child = 0;
  const int error = ::posix_spawnp(&child, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return -1;
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

std::string find_script(const std::string& name) {
  namespace fs = std::filesystem;
  std::error_code error;
  for (const fs::path& start :
       {fs::read_symlink("/proc/self/exe", error).parent_path(), fs::current_path(error)}) {
    for (fs::path dir = start; !dir.empty(); dir = dir.parent_path()) {
      if (fs::exists(dir / "scripts" / name, error)) return (dir / "scripts" / name).string();
      if (dir == dir.parent_path()) break;
    }
  }
  throw Error(Exit::kCheckFailed,
              "scripts/" + name + " not found above the program or the working directory");
}

}  // namespace

void run_plot_script(const std::string& script, const std::vector<std::string>& arguments) {
  const std::string path = find_script(script);
  // The distribution's interpreter first: another python3 earlier on PATH often lacks the packages.
  for (const char* interpreter : {"/usr/bin/python3", "python3"}) {
    if (run_child({interpreter, "-c", "import numpy, matplotlib"}, true) != 0) continue;
    std::vector<std::string> command = {interpreter, path};
    command.insert(command.end(), arguments.begin(), arguments.end());
    const int code = run_child(command, false);
    if (code != 0)
      throw Error(Exit::kCheckFailed,
                  "scripts/" + script + " ended with code " + std::to_string(code));
    return;
  }
  throw Error(Exit::kCheckFailed,
              "plots need a python3 with numpy and matplotlib; install them with: apt-get install "
              "python3-numpy python3-matplotlib");
}

}  // namespace assay
