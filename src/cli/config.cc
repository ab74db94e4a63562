#include "cli/config.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <system_error>
#include <utility>

#include <arpa/inet.h>
#include <netinet/in.h>

#include <toml++/toml.h>

#include "base/files.h"
#include "encode/recipe.h"
#include "inferscale/kv_block.h"

namespace inferscale {
namespace {

constexpr std::size_t kMaxConfigBytes = 1 << 20;

std::string HomeFolder() { return EnvironmentVariable("HOME").value_or("."); }

std::string ExpandHome(const std::string& path) {
  if (path == "~") return HomeFolder();
  if (path.starts_with("~/")) return HomeFolder() + path.substr(1);
  return path;
}

Status Bad() { return InvalidArgument("bad value"); }

template <auto member>
Status SetText(Config& config, const std::string& text) {
  config.*member = text;
  return OkStatus();
}

template <auto member>
Status SetPath(Config& config, const std::string& text) {
  if (text.empty()) return Bad();
  config.*member = ExpandHome(text);
  return OkStatus();
}

template <auto member, std::int32_t least, std::int32_t most>
Status SetInteger(Config& config, const std::string& text) {
  std::int32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return Bad();
  if (value < least || value > most) return Bad();
  config.*member = value;
  return OkStatus();
}

template <auto member>
Status SetBytes(Config& config, const std::string& text) {
  const Result<std::int64_t> bytes = ParseByteCount(text);
  if (!bytes.ok()) return bytes.status();
  config.*member = *bytes;
  return OkStatus();
}

template <auto member>
std::string Get(const Config& config) {
  const auto& value = config.*member;
  using Value = std::decay_t<decltype(value)>;
  if constexpr (std::is_same_v<Value, std::string>) {
    return value;
  } else if constexpr (std::is_same_v<Value, std::filesystem::path>) {
    return value.string();
  } else {
    return std::to_string(value);
  }
}

template <auto member>
Status SetOptionalPath(Config& config, const std::string& text) {
  config.*member = ExpandHome(text);
  return OkStatus();
}

Status SetEngine(Config& config, const std::string& text) {
  if (text != "llama" && text != "vllm") return Bad();
  config.engine = text;
  return OkStatus();
}

Status SetExtraction(Config& config, const std::string& text) {
  if (text != "auto" && text != "verbatim" && text != "llm") return Bad();
  config.extraction = text;
  return OkStatus();
}

Status SetRecipe(Config& config, const std::string& text) {
  INFERSCALE_RETURN_IF_ERROR(Recipe::Parse(text).status());
  config.recipe = text;
  return OkStatus();
}

Status SetCodec(Config& config, const std::string& text) {
  INFERSCALE_RETURN_IF_ERROR(ParseKvCodec(text).status());
  config.codec = text;
  return OkStatus();
}

Status SetRetrievalDevice(Config& config, const std::string& text) {
  constexpr std::string_view kNumbered = "cuda:";
  const bool numbered = text.starts_with(kNumbered) && text.size() > kNumbered.size() &&
                        text.size() <= kNumbered.size() + 3 &&
                        text.find_first_not_of("0123456789", kNumbered.size()) == text.npos;
  if (text != "cpu" && text != "cuda" && !numbered) return Bad();
  config.retrieval_device = text;
  return OkStatus();
}

Status SetAccuracyGate(Config& config, const std::string& text) {
  if (text != "enforce" && text != "ignore") return Bad();
  config.accuracy_gate = text;
  return OkStatus();
}

Status SetLogLevel(Config& config, const std::string& text) {
  static constexpr std::array kLevels = {"trace", "debug", "info", "warn", "error", "off"};
  if (std::find(kLevels.begin(), kLevels.end(), text) == kLevels.end()) return Bad();
  config.log_level = text;
  return OkStatus();
}

Status SetUser(Config& config, const std::string& text) {
  if (text.empty() || text.size() > 256) return Bad();
  config.user = text;
  return OkStatus();
}

Status SetListen(Config& config, const std::string& text) {
  INFERSCALE_RETURN_IF_ERROR(ParseListenAddress(text).status());
  config.listen = text;
  return OkStatus();
}

Status SetRequireKey(Config& config, const std::string& text) {
  if (text != "auto" && text != "always") return Bad();
  config.require_key = text;
  return OkStatus();
}

// "models:NAME" stands for a file in DefaultModelsFolder().
constexpr std::string_view kModelsPrefix = "models:";

constexpr ConfigOption kOptions[] = {
    {"data-dir", "~/.local/share/inferscale", "a folder",
     "Everything the program stores. Created with mode 0700; one process at a time.", false,
     SetPath<&Config::data_dir>, Get<&Config::data_dir>},
    {"engine", "llama", "llama or vllm",
     "What computes: llama.cpp inside the program, or vLLM servers with InferScale's connector.",
     false, SetEngine, Get<&Config::engine>},
    {"model", "models:SmolLM2-135M-Instruct-Q4_1.gguf", "a GGUF file",
     "The chat model of engine llama. Another model keeps the facts and encodes them anew.", false,
     SetPath<&Config::model>, Get<&Config::model>},
    {"vllm-url", "", "http(s) URLs separated by commas",
     "Addresses of vLLM servers of one model, for engine vllm.", false, SetText<&Config::vllm_url>,
     Get<&Config::vllm_url>},
    {"vllm-control", "", "paths separated by commas",
     "Control sockets of these servers' connectors, in the same order; empty: facts are text.",
     false, SetText<&Config::vllm_control>, Get<&Config::vllm_control>},
    {"vllm-secret-file", "", "a file, or empty",
     "The secret shared with the connectors: at least 16 bytes, readable by its owner alone.",
     false, SetOptionalPath<&Config::vllm_secret_file>, Get<&Config::vllm_secret_file>},
    {"vllm-ca-file", "", "a PEM file, or empty",
     "Certificates that may sign those of https servers, beside the ones that the system trusts.",
     false, SetOptionalPath<&Config::vllm_ca_file>, Get<&Config::vllm_ca_file>},
    {"vllm-key", "", "a key", "API key of the vLLM servers.", true, SetText<&Config::vllm_key>,
     Get<&Config::vllm_key>},
    {"embedder", "models:all-MiniLM-L6-v2-f16.gguf", "a GGUF file, or an http(s) URL",
     "The embedding model: a file, or an OpenAI-compatible server's /v1.", false,
     SetPath<&Config::embedder>, Get<&Config::embedder>},
    {"embedder-model", "", "a model name", "Model name sent to an embedding server.", false,
     SetText<&Config::embedder_model>, Get<&Config::embedder_model>},
    {"embedder-key", "", "a key", "API key of an embedding server.", true,
     SetText<&Config::embedder_key>, Get<&Config::embedder_key>},
    {"extractor-url", "", "an http(s) URL, or empty",
     "OpenAI-compatible server that extracts facts; empty: the chat model itself.", false,
     SetText<&Config::extractor_url>, Get<&Config::extractor_url>},
    {"extractor-model", "", "a model name", "Model name sent to the extraction server.", false,
     SetText<&Config::extractor_model>, Get<&Config::extractor_model>},
    {"extractor-key", "", "a key", "API key of the extraction server.", true,
     SetText<&Config::extractor_key>, Get<&Config::extractor_key>},
    {"extraction", "auto", "auto, verbatim or llm",
     "How turns become facts: as they are, or extracted by a model. auto: llm with an extraction "
     "server or a model that passed doctor's check, else verbatim.",
     false, SetExtraction, Get<&Config::extraction>},
    {"recipe", "primer",
     "bare, header, primer[:N], owner-primer[:N], both-primer[:N], turn-primer[:N], window:N, "
     "header-window:N or window-primer:N",
     "What a fact is encoded behind.", false, SetRecipe, Get<&Config::recipe>},
    {"codec", "int4", "f32, f16, bf16, int8 or int4", "How stored keys and values are compressed.",
     false, SetCodec, Get<&Config::codec>},
    {"accuracy-gate", "enforce", "enforce or ignore",
     "What happens with a model, recipe and codec that failed doctor --accuracy: enforce serves "
     "memories as text, ignore serves KV all the same.",
     false, SetAccuracyGate, Get<&Config::accuracy_gate>},
    {"top-k", "20", "a number from 0 to 1000", "Facts that search and chat retrieve.", false,
     SetInteger<&Config::top_k, 0, 1000>, Get<&Config::top_k>},
    {"context-tokens", "0", "0, or a number from 256 to 1048576",
     "Longest prompt and answer of a sequence; 0: fitted to model and memory.", false,
     [](Config& config, const std::string& text) {
       INFERSCALE_RETURN_IF_ERROR((SetInteger<&Config::context_tokens, 0, 1048576>(config, text)));
       return config.context_tokens == 0 || config.context_tokens >= 256 ? OkStatus() : Bad();
     },
     Get<&Config::context_tokens>},
    {"parallel-sequences", "1", "a number from 1 to 64", "Answers generated at the same time.",
     false, SetInteger<&Config::parallel_sequences, 1, 64>, Get<&Config::parallel_sequences>},
    {"threads", "0", "a number from 0 to 512", "Threads of the models; 0: one a physical core.",
     false, SetInteger<&Config::threads, 0, 512>, Get<&Config::threads>},
    {"gpu-layers", "0", "a number from 0 to 1000",
     "Layers computed on a GPU, in a build with CUDA.", false,
     SetInteger<&Config::gpu_layers, 0, 1000>, Get<&Config::gpu_layers>},
    {"retrieval-device", "cpu", "cpu, cuda or cuda:N",
     "Where facts' vectors lie and are searched: memory, or a GPU in a build with CUDA.", false,
     SetRetrievalDevice, Get<&Config::retrieval_device>},
    {"retrieval-bytes", "1G", "a size such as 500M or 4G",
     "Memory there that vectors may take; owners searched longest ago give way.", false,
     SetBytes<&Config::retrieval_bytes>, Get<&Config::retrieval_bytes>},
    {"kv-host-bytes", "1G", "a size such as 500M or 4G", "Memory that stored KV may take.", false,
     SetBytes<&Config::kv_host_bytes>, Get<&Config::kv_host_bytes>},
    {"kv-file-bytes", "16G", "a size such as 500M or 4G", "Disk space that stored KV may take.",
     false, SetBytes<&Config::kv_file_bytes>, Get<&Config::kv_file_bytes>},
    {"log-level", "warn", "trace, debug, info, warn, error or off",
     "What is logged on stderr; serve logs at info unless told otherwise. Texts are logged at "
     "debug "
     "and below only.",
     false, SetLogLevel, Get<&Config::log_level>},
    {"user", "me", "1 to 256 bytes", "Whose memories a command is about.", false, SetUser,
     Get<&Config::user>},
    {"listen", "127.0.0.1:8420", "an IP address and a port such as 0.0.0.0:8420 or [::1]:8420",
     "Where serve listens; port 0: any free one.", false, SetListen, Get<&Config::listen>},
    {"require-key", "auto", "auto or always",
     "Whether serve needs API keys. auto: everywhere but on a loopback address.", false,
     SetRequireKey, Get<&Config::require_key>},
    {"allowed-hosts", "", "names separated by commas, or *",
     "Host names that serve is reached by, beside localhost and IP addresses.", false,
     SetText<&Config::allowed_hosts>, Get<&Config::allowed_hosts>},
    {"allowed-origins", "", "origins such as https://app.example, separated by commas",
     "Web pages' origins that may write to serve, beside its own.", false,
     SetText<&Config::allowed_origins>, Get<&Config::allowed_origins>},
    {"max-body-bytes", "32M", "a size such as 500K or 32M",
     "Largest request body that serve reads.", false, SetBytes<&Config::max_body_bytes>,
     Get<&Config::max_body_bytes>},
};

std::string DefaultText(const ConfigOption& option) {
  if (option.default_text.starts_with(kModelsPrefix)) {
    return (DefaultModelsFolder() / option.default_text.substr(kModelsPrefix.size())).string();
  }
  return std::string(option.default_text);
}

Status SetFrom(const ConfigOption& option, const std::string& text, ConfigSource source,
               const std::string& where, LoadedConfig* loaded) {
  const bool printable = text.find('\0') == std::string::npos;
  if (!printable || !option.set(loaded->config, text).ok()) {
    const std::string shown = option.secret ? "" : " \"" + text.substr(0, 200) + "\"";
    return InvalidArgument(where + ": the value" + shown + " is not allowed: give " +
                           std::string(option.allowed));
  }
  loaded->sources[std::string(option.name)] = source;
  return OkStatus();
}

std::string NearestKey(std::string_view key) {
  std::string best;
  std::size_t best_distance = 4;
  for (const ConfigOption& option : kOptions) {
    const std::string candidate = option.TomlKey();
    std::vector<std::size_t> row(candidate.size() + 1);
    for (std::size_t j = 0; j < row.size(); ++j) row[j] = j;
    for (std::size_t i = 0; i < key.size(); ++i) {
      std::size_t diagonal = row[0];
      row[0] = i + 1;
      for (std::size_t j = 0; j < candidate.size(); ++j) {
        const std::size_t replaced = diagonal + (key[i] == candidate[j] ? 0 : 1);
        diagonal = row[j + 1];
        row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
      }
    }
    if (row.back() < best_distance) {
      best_distance = row.back();
      best = candidate;
    }
  }
  return best;
}

std::string AllKeys() {
  std::string keys;
  for (const ConfigOption& option : kOptions) keys += (keys.empty() ? "" : ", ") + option.TomlKey();
  return keys;
}

Result<std::string> TomlText(const toml::node& node) {
  if (const auto text = node.value_exact<std::string>()) return *text;
  if (const auto number = node.value_exact<std::int64_t>()) return std::to_string(*number);
  return Bad();
}

Status ReadTomlFile(const std::filesystem::path& path, LoadedConfig* loaded) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::string content, ReadTextFile(path, kMaxConfigBytes));
  const auto at = [&](const toml::source_region& region) {
    return path.string() + ":" + std::to_string(region.begin.line);
  };
  toml::table table;
  try {
    table = toml::parse(content, path.string());
  } catch (const toml::parse_error& error) {
    return InvalidArgument(at(error.source()) + ": not TOML: " + std::string(error.description()));
  }
  for (const auto& [key, node] : table) {
    const std::string name(key.str());
    const std::string where = at(key.source()) + ": " + name;
    const auto option =
        std::find_if(std::begin(kOptions), std::end(kOptions),
                     [&](const ConfigOption& candidate) { return candidate.TomlKey() == name; });
    if (option == std::end(kOptions)) {
      const std::string near = NearestKey(name);
      return InvalidArgument(
          where + ": no such option" +
          (near.empty() ? ": use one of " + AllKeys() : ": did you mean " + near + "?"));
    }
    const Result<std::string> text = TomlText(node);
    if (!text.ok()) {
      return InvalidArgument(where + ": the value is neither text nor a whole number: give " +
                             std::string(option->allowed));
    }
    INFERSCALE_RETURN_IF_ERROR(SetFrom(*option, *text, ConfigSource::kFile, where, loaded));
  }
  loaded->file = path;
  return OkStatus();
}

}  // namespace

std::string ConfigOption::Flag() const { return "--" + std::string(name); }

std::string ConfigOption::Environment() const {
  std::string text = "INFERSCALE_";
  for (const char c : name) {
    text += c == '-' ? '_' : static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  }
  return text;
}

std::string ConfigOption::TomlKey() const {
  std::string text(name);
  std::replace(text.begin(), text.end(), '-', '_');
  return text;
}

std::span<const ConfigOption> ConfigOptions() { return kOptions; }

std::string_view ConfigSourceName(ConfigSource source) {
  switch (source) {
    case ConfigSource::kDefault:
      return "default";
    case ConfigSource::kFile:
      return "file";
    case ConfigSource::kEnvironment:
      return "environment";
    case ConfigSource::kFlag:
      return "flag";
  }
  return "";
}

Result<ListenAddress> ParseListenAddress(const std::string& text) {
  const Status bad = InvalidArgument("not an IP address and a port");
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) return bad;
  ListenAddress parsed;
  parsed.address = text.substr(0, colon);
  const bool bracketed = parsed.address.front() == '[' && parsed.address.back() == ']';
  if (bracketed) parsed.address = parsed.address.substr(1, parsed.address.size() - 2);
  in_addr v4{};
  in6_addr v6{};
  if (!bracketed && inet_pton(AF_INET, parsed.address.c_str(), &v4) == 1) {
    constexpr std::uint32_t kLoopbackNet = 127;
    parsed.loopback = ntohl(v4.s_addr) >> 24 == kLoopbackNet;
  } else if (bracketed && inet_pton(AF_INET6, parsed.address.c_str(), &v6) == 1) {
    parsed.loopback = IN6_IS_ADDR_LOOPBACK(&v6);
  } else {
    return bad;
  }
  const char* const end = text.data() + text.size();
  const auto [read, error] = std::from_chars(text.data() + colon + 1, end, parsed.port);
  if (error != std::errc() || read != end) return bad;
  return parsed;
}

std::optional<std::string> EnvironmentVariable(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

std::filesystem::path DefaultModelsFolder() {
  const std::string cache =
      EnvironmentVariable("INFERSCALE_CACHE_DIR").value_or(HomeFolder() + "/.cache/inferscale");
  return std::filesystem::path(ExpandHome(cache)) / "models";
}

Result<LoadedConfig> LoadConfig(const ConfigInputs& inputs) {
  LoadedConfig loaded;
  for (const ConfigOption& option : kOptions) {
    INFERSCALE_RETURN_IF_ERROR(SetFrom(option, DefaultText(option), ConfigSource::kDefault,
                                       "default of " + option.Flag(), &loaded));
  }
  const auto environment = [&](const std::string& name) {
    return inputs.environment ? inputs.environment(name) : std::nullopt;
  };

  std::optional<std::string> file = inputs.file;
  if (!file) file = environment("INFERSCALE_CONFIG");
  if (file) {
    INFERSCALE_RETURN_IF_ERROR(ReadTomlFile(ExpandHome(*file), &loaded));
  } else {
    const std::filesystem::path path = ExpandHome("~/.config/inferscale/config.toml");
    std::error_code error;
    if (std::filesystem::exists(path, error)) {
      INFERSCALE_RETURN_IF_ERROR(ReadTomlFile(path, &loaded));
    }
  }
  for (const ConfigOption& option : kOptions) {
    if (const auto text = environment(option.Environment())) {
      INFERSCALE_RETURN_IF_ERROR(
          SetFrom(option, *text, ConfigSource::kEnvironment, option.Environment(), &loaded));
    }
  }
  for (const ConfigOption& option : kOptions) {
    const auto flag = inputs.flags.find(std::string(option.name));
    if (flag == inputs.flags.end()) continue;
    INFERSCALE_RETURN_IF_ERROR(
        SetFrom(option, flag->second, ConfigSource::kFlag, option.Flag(), &loaded));
  }
  return loaded;
}

Result<std::int64_t> ParseByteCount(std::string_view text) {
  double number = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  double factor = 1;
  if (!unit.empty()) {
    const std::size_t power = std::string_view("KMGT").find(
        static_cast<char>(unit[0] >= 'a' && unit[0] <= 'z' ? unit[0] - 'a' + 'A' : unit[0]));
    if (power != std::string_view::npos) {
      factor = std::pow(1024.0, static_cast<double>(power + 1));
      unit.remove_prefix(1);
    }
  }
  const bool known_unit = unit.empty() || unit == "B" || (unit == "iB" && factor > 1);
  const double bytes = number * factor;
  if (error != std::errc() || !known_unit || !(bytes >= 0) || bytes > 9e18) {
    return InvalidArgument("not a size such as 500M or 4G");
  }
  return static_cast<std::int64_t>(bytes);
}

std::string FormatByteCount(std::int64_t bytes) {
  static constexpr const char* kUnits[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return std::to_string(bytes) + " bytes";
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof(text), value < 10 ? "%.1f %s" : "%.0f %s", value, kUnits[unit]);
  return text;
}

std::string ConfigurationMarkdown() {
  std::string text =
      "# Configuration\n"
      "\n"
      "Every option can be given as a flag, an environment variable or a key of a TOML file. A "
      "flag\n"
      "wins over the environment, the environment over the file, the file over the default.\n"
      "`inferscale config` prints the values in force and where each comes from.\n"
      "\n"
      "The file is the one of `--config`, else of `INFERSCALE_CONFIG`, else\n"
      "`~/.config/inferscale/config.toml` if there is one. An unknown key or a bad value is an "
      "error\n"
      "that names the file and line. An empty environment variable counts as unset.\n"
      "\n"
      "| flag | environment | TOML key | default | value | what it does |\n"
      "|---|---|---|---|---|---|\n";
  for (const ConfigOption& option : kOptions) {
    std::string shown(option.default_text);
    if (shown.starts_with(kModelsPrefix)) {
      shown = "models/" + shown.substr(kModelsPrefix.size()) + " in the cache";
    }
    text += "| `" + option.Flag() + "` | `" + option.Environment() + "` | `" + option.TomlKey() +
            "` | " + (shown.empty() ? "" : "`" + shown + "`") + " | " +
            std::string(option.allowed) + " | " + std::string(option.description) +
            (option.secret ? " Never printed." : "") + " |\n";
  }
  text +=
      "\n"
      "Two variables are not options: `INFERSCALE_CONFIG` names the file above, and\n"
      "`INFERSCALE_CACHE_DIR` (default `~/.cache/inferscale`) holds what was fetched: the default\n"
      "models lie in its `models` folder.\n"
      "\n"
      "Keys given as flags can be read by other users of the machine in the list of processes:\n"
      "give them in the file or the environment.\n"
      "\n"
      "## Example\n"
      "\n"
      "```toml\n"
      "data_dir = \"~/memories\"\n"
      "model = \"~/models/Qwen3-4B-Q4_K_M.gguf\"\n"
      "top_k = 30\n"
      "kv_file_bytes = \"64G\"\n"
      "```\n";
  return text;
}

}  // namespace inferscale
