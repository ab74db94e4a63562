#ifndef INFERSCALE_CLI_CONFIG_H_
#define INFERSCALE_CLI_CONFIG_H_

/// \file config.h
/// Config: every option of the program, from four sources, the later winning: built-in default,
/// TOML file, environment, flag. One table (ConfigOptions) drives parsing, help and
/// docs/configuration.md.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "inferscale/result.h"

namespace inferscale {

struct Config {
  std::filesystem::path data_dir;
  std::string engine;                  ///< "llama", "vllm"
  std::filesystem::path model;         ///< GGUF file, of "llama"
  std::string vllm_url, vllm_control;  ///< separated by commas
  std::filesystem::path vllm_secret_file, vllm_ca_file;
  std::string vllm_key;
  std::string embedder;  ///< GGUF file or http(s) URL
  std::string embedder_model, embedder_key;
  std::string extractor_url, extractor_model, extractor_key;
  std::string extraction;  ///< "auto", "verbatim", "llm"
  std::string recipe;
  std::string codec;
  std::string accuracy_gate;  ///< "enforce", "ignore"
  std::int32_t top_k = 0;
  std::int32_t context_tokens = 0;  ///< 0: fitted to memory
  std::int32_t parallel_sequences = 0;
  std::int32_t threads = 0;  ///< 0: physical cores
  std::int32_t gpu_layers = 0;
  std::string retrieval_device;  ///< "cpu", "cuda" or "cuda:N"
  std::int64_t retrieval_bytes = 0;
  std::int64_t kv_host_bytes = 0, kv_file_bytes = 0;
  std::string log_level;
  std::string user;
  std::string listen;                          ///< of `serve`: "ADDRESS:PORT"
  std::string allowed_hosts, allowed_origins;  ///< separated by commas
  std::string require_key;                     ///< "auto", "always"
  std::int64_t max_body_bytes = 0;
};

/// One row of the table. Environment variable, flag and TOML key follow from the name.
struct ConfigOption {
  std::string_view name;          ///< "data-dir"
  std::string_view default_text;  ///< in the form that `set` takes
  std::string_view allowed;       ///< what a value may be, in words
  std::string_view description;
  bool secret = false;                                     ///< never printed
  Status (*set)(Config& config, const std::string& text);  ///< the message says only what is wrong
  std::string (*get)(const Config& config);

  std::string Flag() const;         ///< "--data-dir"
  std::string Environment() const;  ///< "INFERSCALE_DATA_DIR"
  std::string TomlKey() const;      ///< "data_dir"
};

std::span<const ConfigOption> ConfigOptions();

enum class ConfigSource { kDefault, kFile, kEnvironment, kFlag };
std::string_view ConfigSourceName(ConfigSource source);

struct LoadedConfig {
  Config config;
  std::map<std::string, ConfigSource> sources;  ///< by option name
  std::filesystem::path file;                   ///< the TOML file read; empty: none

  bool Given(const std::string& name) const { return sources.at(name) != ConfigSource::kDefault; }
};

struct ConfigInputs {
  std::map<std::string, std::string> flags;  ///< by option name
  std::optional<std::string> file;           ///< of --config
  /// Value of an environment variable; unset or empty: none.
  std::function<std::optional<std::string>(const std::string&)> environment;
};

/// kInvalidArgument for an unknown TOML key or a bad value, saying where it stands (file:line,
/// environment variable or flag), and what is allowed. kNotFound when a file that was asked for is
/// missing. Values of secrets are never in a message.
Result<LoadedConfig> LoadConfig(const ConfigInputs& inputs);

struct ListenAddress {
  std::string address;  ///< an IP address
  std::uint16_t port = 0;
  bool loopback = false;
};
/// "127.0.0.1:8420", "[::1]:8420"; port 0: any free one.
Result<ListenAddress> ParseListenAddress(const std::string& text);

/// Of the process.
std::optional<std::string> EnvironmentVariable(const std::string& name);

/// "4G", "500M", "1.5T", "1024", optionally with B or iB; K, M, G, T are powers of 1024.
Result<std::int64_t> ParseByteCount(std::string_view text);
/// "3.2 GiB"
std::string FormatByteCount(std::int64_t bytes);

/// docs/configuration.md.
std::string ConfigurationMarkdown();

/// ${INFERSCALE_CACHE_DIR:-~/.cache/inferscale}/models
std::filesystem::path DefaultModelsFolder();

}  // namespace inferscale

#endif  // INFERSCALE_CLI_CONFIG_H_
