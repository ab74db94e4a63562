#include "cli/service_factory.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <span>
#include <system_error>
#include <utility>

#include <spdlog/spdlog.h>

#include <sys/stat.h>

#include "base/files.h"
#include "base/hash.h"
#include "base/utf8.h"
#include "embed/make_embedder.h"
#include "engine/llama/llama_engine.h"
#include "engine/vllm/vllm_engine.h"
#include "inferscale/kv_store.h"
#include "llama/llama_runtime.h"
#include "retrieval/vector_memory.h"

namespace inferscale {
namespace {

namespace fs = std::filesystem;

constexpr std::int32_t kExtractionTokens = 512;  // an answer of five facts

bool IsUrl(const std::string& location) {
  return location.starts_with("http://") || location.starts_with("https://");
}

/// kNotFound that says how to get the file.
Status CheckModelFile(const fs::path& path, const std::string& what, const std::string& flag) {
  std::error_code error;
  if (fs::is_regular_file(path, error)) return OkStatus();
  if (fs::exists(path, error)) {
    return InvalidArgument(what + " " + path.string() + " is not a file: pass a GGUF file with " +
                           flag);
  }
  return NotFound(what + " " + path.string() + " is missing: run make demo once, or pass " + flag);
}

constexpr std::size_t kMostSecretBytes = 4096;

/// As the connector reads the same file.
Result<std::vector<std::uint8_t>> ReadSharedSecret(const fs::path& path) {
  const std::string what = "--vllm-secret-file " + path.string();
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) {
    return NotFound(what + " cannot be read; name the file of the connector's secret_file");
  }
  if ((status.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return FailedPrecondition(what + " can be read by others; run chmod 600 " + path.string());
  }
  INFERSCALE_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMostSecretBytes));
  const std::string_view secret = TrimWhitespace(text);
  if (secret.size() < 16) {
    return InvalidArgument(what + " has " + std::to_string(secret.size()) +
                           " bytes; at least 16 are needed");
  }
  return std::vector<std::uint8_t>(secret.begin(), secret.end());
}

Result<std::shared_ptr<Engine>> OpenVllm(const Config& config) {
  VllmEngineOptions options;
  if (config.vllm_url.empty()) {
    return InvalidArgument("engine vllm needs the address of a server: pass --vllm-url");
  }
  options.urls = SplitList(config.vllm_url);
  if (!config.vllm_control.empty()) options.control_paths = SplitList(config.vllm_control);
  options.api_key = config.vllm_key;
  options.ca_file = config.vllm_ca_file.string();
  if (!config.vllm_secret_file.empty()) {
    INFERSCALE_ASSIGN_OR_RETURN(options.secret, ReadSharedSecret(config.vllm_secret_file));
  }
  INFERSCALE_ASSIGN_OR_RETURN(std::unique_ptr<VllmEngine> engine, VllmEngine::Create(options));
  return std::shared_ptr<Engine>(std::move(engine));
}

Status EraseInVllm(const Config& config, std::span<const Erasure> erasures) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::shared_ptr<Engine> engine, OpenVllm(config));
  for (const Erasure& erasure : erasures) {
    if (erasure.whole_scope) {
      INFERSCALE_RETURN_IF_ERROR(engine->EraseScope(erasure.scope_tag, erasure.epoch));
    }
    if (erasure.prefixes) INFERSCALE_RETURN_IF_ERROR(engine->EraseScope(kPrefixScopeTag, 0));
    INFERSCALE_RETURN_IF_ERROR(engine->Erase(erasure.keys, erasure.scope_tag, erasure.epoch));
  }
  return OkStatus();
}

/// What can be known to be missing before anything is loaded.
Status CheckEngine(const Config& config) {
  if (UsesVllm(config)) return OkStatus();
  return CheckModelFile(config.model, "the chat model", "--model");
}

Status RememberIfChanged(Catalog& catalog, const char* name, const std::string& value) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::string known, catalog.GetMeta(name));
  return known == value ? OkStatus() : catalog.SetMeta(name, value);
}

struct ChosenExtraction {
  ExtractionMode mode = ExtractionMode::kVerbatim;
  std::shared_ptr<Extractor> extractor;
  std::string reason;
};

Result<ChosenExtraction> ChooseExtraction(const Config& config, Catalog& catalog,
                                          const std::shared_ptr<Engine>& engine) {
  ChosenExtraction chosen;
  if (config.extraction == "verbatim") {
    chosen.reason = "verbatim, as configured";
  } else if (!config.extractor_url.empty()) {
    INFERSCALE_ASSIGN_OR_RETURN(
        CompletionFunction complete,
        MakeEndpointCompletion(config.extractor_url, config.extractor_model, config.extractor_key));
    chosen.mode = ExtractionMode::kLlm;
    chosen.extractor = std::make_shared<LlmExtractor>(std::move(complete));
    chosen.reason = "llm, by the extraction server";
    return chosen;
  } else if (config.extraction == "llm") {
    chosen.mode = ExtractionMode::kLlm;
    chosen.reason = "llm, by the chat model, as configured";
  } else if (engine == nullptr) {
    chosen.reason = "verbatim: no extraction server, and no model is loaded";
  } else {
    INFERSCALE_ASSIGN_OR_RETURN(const std::string passed,
                                catalog.GetMeta(meta_names::kExtractionCheck));
    if (passed == HexEncode(engine->fingerprint())) {
      chosen.mode = ExtractionMode::kLlm;
      chosen.reason = "llm, by the chat model, which passed doctor's check";
    } else {
      chosen.reason =
          "verbatim: no extraction server, and the chat model has not passed doctor's check";
    }
  }
  // Also for --llm on a single command.
  if (engine != nullptr)
    chosen.extractor = std::make_shared<LlmExtractor>(EngineCompletion(engine));
  return chosen;
}

}  // namespace

bool UsesVllm(const Config& config) { return config.engine == "vllm"; }

std::string ModelName(const Config& config, const Engine* engine) {
  const auto* vllm = dynamic_cast<const VllmEngine*>(engine);
  if (vllm != nullptr) return vllm->model();
  return UsesVllm(config) ? "vLLM" : config.model.stem().string();
}

KvCodec CodecOf(const Engine* engine, KvCodec configured) {
  return engine != nullptr ? engine->capabilities().codec.value_or(configured) : configured;
}

std::vector<std::string> SplitList(const std::string& text) {
  std::vector<std::string> items;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    items.emplace_back(TrimWhitespace(std::string_view(text).substr(at, end - at)));
    at = end + 1;
  }
  return items;
}

Result<std::unique_ptr<Catalog>> OpenCatalog(const Config& config) {
  CatalogOptions options;
  options.folder = config.data_dir;
  return OpenSqliteCatalog(std::move(options));
}

Status CompleteErasures(const Config& config, Catalog& catalog) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<Erasure> erasures, catalog.PendingErasures());
  if (erasures.empty()) return OkStatus();
  const fs::path folder = config.data_dir / "kv";
  std::unique_ptr<KvStore> store;
  std::error_code error;
  if (fs::exists(folder, error)) {
    // Of no model: such a store returns no block, but erases those of all models. Without a budget,
    // as nothing may be evicted on the way.
    KvStoreOptions options;
    options.folder = folder;
    options.host_budget_bytes = 0;
    options.file_budget_bytes = std::numeric_limits<std::int64_t>::max();
    INFERSCALE_ASSIGN_OR_RETURN(store, KvStore::Open(std::move(options)));
  }
  for (const Erasure& erasure : erasures) {
    if (store != nullptr) {
      if (erasure.whole_scope) {
        INFERSCALE_RETURN_IF_ERROR(store->EraseScope(erasure.scope_tag, erasure.epoch));
      }
      if (erasure.prefixes) INFERSCALE_RETURN_IF_ERROR(store->EraseScope(kPrefixScopeTag, 0));
      INFERSCALE_RETURN_IF_ERROR(store->Erase(erasure.keys));
    }
  }
  if (UsesVllm(config)) {
    const Status erased = EraseInVllm(config, erasures);
    if (!erased.ok()) {
      // They stay recorded, and a service that reaches the servers carries them out.
      spdlog::warn("KV of erased memories is left in vLLM until it can be reached: {}",
                   erased.message());
      return OkStatus();
    }
  }
  for (const Erasure& erasure : erasures) {
    INFERSCALE_RETURN_IF_ERROR(catalog.CompleteErasure(erasure.id));
  }
  return OkStatus();
}

Result<std::shared_ptr<Embedder>> OpenEmbedder(const Config& config, Catalog* catalog) {
  EmbedderSpec spec;
  spec.location = config.embedder;
  spec.threads = config.threads > 0 ? config.threads : PhysicalCores();
  spec.model = config.embedder_model;
  spec.api_key = config.embedder_key;
  if (!IsUrl(spec.location)) {
    INFERSCALE_RETURN_IF_ERROR(CheckModelFile(spec.location, "the embedding model", "--embedder"));
  }
  Result<std::unique_ptr<Embedder>> embedder = MakeEmbedder(spec);
  if (IsUrl(spec.location) && catalog != nullptr) {
    // What is stored must stay in use while the server is away: found by keywords, listed, deleted.
    const std::string endpoint =
        HexEncode(Sha256(spec.location + "\n" + spec.model)).substr(0, 32) + " ";
    if (embedder.ok()) {
      INFERSCALE_RETURN_IF_ERROR(RememberIfChanged(
          *catalog, meta_names::kEndpoint, endpoint + std::to_string((*embedder)->dimensions())));
    } else if (embedder.status().retryable()) {
      INFERSCALE_ASSIGN_OR_RETURN(const std::string known, catalog->GetMeta(meta_names::kEndpoint));
      if (known.starts_with(endpoint)) {
        spdlog::warn("{}", embedder.status().ToString());
        const char* const digits = known.data() + endpoint.size();
        std::from_chars(digits, known.data() + known.size(), spec.dimensions);
        embedder = MakeEmbedder(spec);
      }
    }
  }
  if (!embedder.ok()) return embedder.status();
  return std::shared_ptr<Embedder>(*std::move(embedder));
}

LlamaEngineOptions EngineOptions(const Config& config, const fs::path& folder) {
  LlamaEngineOptions options;
  options.model_path = config.model;
  options.context_tokens = config.context_tokens;
  options.parallel_sequences = config.parallel_sequences;
  options.threads = config.threads;
  options.gpu_layers = config.gpu_layers;
  options.store.folder = folder / "kv";
  options.store.host_budget_bytes = config.kv_host_bytes;
  options.store.file_budget_bytes = config.kv_file_bytes;
  options.cache_folder = DefaultModelsFolder().parent_path();
  return options;
}

Result<std::shared_ptr<Engine>> OpenEngine(const Config& config, const fs::path& folder) {
  if (UsesVllm(config)) return OpenVllm(config);
  INFERSCALE_RETURN_IF_ERROR(CheckEngine(config));
  return MakeLlamaEngine(EngineOptions(config, folder));
}

CompletionFunction EngineCompletion(std::shared_ptr<Engine> engine) {
  return [engine = std::move(engine)](const std::vector<ChatMessage>& messages,
                                      const std::string& grammar) -> Result<std::string> {
    INFERSCALE_ASSIGN_OR_RETURN(RenderedChat rendered, engine->Render(messages));
    Composition composition;
    composition.ids = std::move(rendered.ids);
    composition.salt = "extraction";
    composition.inject = false;
    Sampling sampling;
    sampling.max_tokens = kExtractionTokens;
    if (engine->capabilities().grammar) sampling.grammar = grammar;
    GenerationReport report =
        GenerateBlocking(*engine, std::move(composition), std::move(sampling));
    if (!report.status.ok()) return report.status;
    return std::move(report.text);
  };
}

bool ExtractionNeedsEngine(const Config& config) {
  return config.extraction == "llm" && config.extractor_url.empty();
}

Result<OpenedService> OpenServiceAt(const Config& config, const fs::path& folder,
                                    MemoryServiceOptions options, bool with_engine) {
  Config placed = config;
  placed.data_dir = folder;
  // First what fails fastest: a folder in use, a missing file.
  INFERSCALE_ASSIGN_OR_RETURN(std::unique_ptr<Catalog> catalog, OpenCatalog(placed));
  INFERSCALE_RETURN_IF_ERROR(CompleteErasures(placed, *catalog));
  if (with_engine) INFERSCALE_RETURN_IF_ERROR(CheckEngine(config));
  INFERSCALE_ASSIGN_OR_RETURN(options.vectors, MakeVectorMemory(config.retrieval_device));
  options.vector_bytes = static_cast<std::size_t>(config.retrieval_bytes);
  INFERSCALE_ASSIGN_OR_RETURN(std::shared_ptr<Embedder> embedder,
                              OpenEmbedder(config, catalog.get()));
  INFERSCALE_RETURN_IF_ERROR(RememberIfChanged(*catalog, meta_names::kEmbedderId, embedder->id()));
  std::shared_ptr<Engine> engine;
  if (with_engine) {
    INFERSCALE_ASSIGN_OR_RETURN(engine, OpenEngine(config, folder));
    options.codec = CodecOf(engine.get(), options.codec);
  }
  INFERSCALE_ASSIGN_OR_RETURN(ChosenExtraction chosen, ChooseExtraction(config, *catalog, engine));
  options.extraction = chosen.mode;
  OpenedService opened;
  opened.extraction_reason = std::move(chosen.reason);
  INFERSCALE_ASSIGN_OR_RETURN(
      opened.service,
      MemoryService::Create(std::move(catalog), std::move(embedder), std::move(engine),
                            std::move(chosen.extractor), std::move(options)));
  return opened;
}

Result<OpenedService> OpenService(const Config& config, bool with_engine) {
  MemoryServiceOptions options;
  options.recipe = config.recipe;
  INFERSCALE_ASSIGN_OR_RETURN(options.codec, ParseKvCodec(config.codec));
  if (config.accuracy_gate == "ignore") options.accuracy_gate = AccuracyGate::kIgnore;
  return OpenServiceAt(config, config.data_dir, std::move(options), with_engine);
}

}  // namespace inferscale
