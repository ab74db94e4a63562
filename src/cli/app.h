#ifndef INFERSCALE_CLI_APP_H_
#define INFERSCALE_CLI_APP_H_

namespace inferscale {

/// The whole program. \return its exit status: 0 ok, 1 error, 2 wrong usage.
int RunCli(int argc, const char* const* argv);

}  // namespace inferscale

#endif  // INFERSCALE_CLI_APP_H_
