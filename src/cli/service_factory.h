#ifndef INFERSCALE_CLI_SERVICE_FACTORY_H_
#define INFERSCALE_CLI_SERVICE_FACTORY_H_

/// \file service_factory.h
/// From a Config to the parts: catalog, embedder, engine, extractor, MemoryService.

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cli/config.h"
#include "engine/llama/llama_engine_options.h"
#include "inferscale/catalog.h"
#include "inferscale/embedder.h"
#include "inferscale/engine.h"
#include "inferscale/memory_service.h"
#include "inferscale/result.h"
#include "memory/extractor.h"

namespace inferscale {

/// Names of values that commands keep in the catalog.
namespace meta_names {
inline constexpr const char* kEmbedderId = "cli.embedder_id";
inline constexpr const char* kEndpoint = "cli.endpoint";  ///< the one last used, its dimensions
inline constexpr const char* kExtractionCheck =
    "cli.extraction";  ///< fingerprint of the model that passed
}  // namespace meta_names

struct OpenedService {
  std::unique_ptr<MemoryService> service;
  std::string extraction_reason;  ///< why facts are made as they are, in words
};

/// The data folder alone: no model is loaded, nothing is encoded. kUnavailable: another process has
/// it.
Result<std::unique_ptr<Catalog>> OpenCatalog(const Config& config);

/// Removes from the KV files, or from vLLM, what erasures took out of the catalog. Needs no model;
/// vLLM may be away: what it holds then stays recorded.
Status CompleteErasures(const Config& config, Catalog& catalog);

/// \param catalog if not null, remembers an endpoint's dimensions and lends them while it is down.
Result<std::shared_ptr<Embedder>> OpenEmbedder(const Config& config, Catalog* catalog);
bool UsesVllm(const Config& config);
/// What the model is called, for headings and the API.
std::string ModelName(const Config& config, const Engine* engine);
/// In what an engine's facts are stored: as configured, unless the engine decides it.
KvCodec CodecOf(const Engine* engine, KvCodec configured);
/// Trimmed items of a list separated by commas; empty items are kept.
std::vector<std::string> SplitList(const std::string& text);
LlamaEngineOptions EngineOptions(const Config& config, const std::filesystem::path& folder);
/// The chat model, its KV in `folder`/kv; or vLLM's, its KV there.
Result<std::shared_ptr<Engine>> OpenEngine(const Config& config,
                                           const std::filesystem::path& folder);

/// A service on the configured data folder.
/// \param with_engine false: no chat model is loaded; facts wait for their KV.
Result<OpenedService> OpenService(const Config& config, bool with_engine);

/// The same with everything said.
Result<OpenedService> OpenServiceAt(const Config& config, const std::filesystem::path& folder,
                                    MemoryServiceOptions options, bool with_engine);

/// Whether adding facts certainly asks a language model that runs in this process.
bool ExtractionNeedsEngine(const Config& config);

/// Completions by an engine, for extraction.
CompletionFunction EngineCompletion(std::shared_ptr<Engine> engine);

}  // namespace inferscale

#endif  // INFERSCALE_CLI_SERVICE_FACTORY_H_
