#ifndef TESSERA_SERVER_APP_SERVER_APP_H_
#define TESSERA_SERVER_APP_SERVER_APP_H_

#include "server/app/server_options.h"

namespace tessera {

// Runs the server until SIGTERM or SIGINT, drains, and returns the process's exit code: 0 after an orderly end, 1 when
// it could not start. A second signal ends the process at once, as does any signal during the start. Call once, from
// main, before other threads exist: it blocks signals for all threads to come.
int RunServer(const ServerOptions& options);

}  // namespace tessera

#endif  // TESSERA_SERVER_APP_SERVER_APP_H_
