#ifndef INFERSCALE_ENGINE_VLLM_VLLM_ENGINE_OPTIONS_H_
#define INFERSCALE_ENGINE_VLLM_VLLM_ENGINE_OPTIONS_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace inferscale {

struct VllmEngineOptions {
  std::vector<std::string> urls;           ///< of servers of one model
  std::vector<std::string> control_paths;  ///< [urls] or empty; an empty one: that server has no KV
  std::string api_key;                     ///< of all of them; empty: none
  std::string ca_file;  ///< PEM, of certificates trusted beside the system's; empty: none
  std::vector<std::uint8_t> secret;                 ///< shared with the connectors; empty: no KV
  std::chrono::milliseconds timeout{120'000};       ///< longest silence of a server that computes
  std::chrono::milliseconds quick_timeout{15'000};  ///< the same for what takes no computing
  std::chrono::milliseconds recheck{2'000};  ///< between looks at servers whose KV is not usable
  bool force_text = false;                   ///< never encode or inject
};

}  // namespace inferscale

#endif  // INFERSCALE_ENGINE_VLLM_VLLM_ENGINE_OPTIONS_H_
