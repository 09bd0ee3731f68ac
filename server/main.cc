// tessera-server: see server/app/server_options.cc for its flags.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "server/app/server_app.h"
#include "server/app/server_options.h"

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const absl::StatusOr<tessera::ServerOptions> options = tessera::ParseServerOptions(
      arguments, [](const char* name) -> const char* { return std::getenv(name); });
  if (!options.ok()) {
    std::fprintf(stderr, "%s\n\nSee tessera-server --help.\n",
                 std::string(options.status().message()).c_str());
    return 2;
  }
  if (options->help) {
    std::printf("%s", tessera::ServerHelp().c_str());
    return 0;
  }
  if (options->version) {
    std::printf("tessera-server %s\n", TESSERA_VERSION);
    return 0;
  }
  return tessera::RunServer(*options);
}
