// inferscale doctor: is this machine, folder and model fit, and what to do if not.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>
#include <span>
#include <system_error>
#include <utility>

#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/files.h"
#include "base/hash.h"
#include "base/utf8.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "cli/service_factory.h"
#include "engine/llama/memory_plan.h"
#include "eval/accuracy_check.h"
#include "llama/gguf_metadata.h"
#include "llama/llama_runtime.h"
#include "retrieval/vector_memory.h"

namespace inferscale {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::int64_t kLeastFreeDiskBytes = std::int64_t{512} << 20;
constexpr std::int64_t kEncodedFacts = 8;

double MillisecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

std::string Milliseconds(double ms) {
  char text[32];
  std::snprintf(text, sizeof(text), ms < 10 ? "%.1f ms" : "%.0f ms", ms);
  return text;
}

struct Check {
  std::string name;
  bool ok = false;
  std::string detail;
  bool required = true;    ///< false: the program does its main job without
  json figures = nullptr;  ///< more of it; null: none
};

/// A folder that goes with everything in it.
class TemporaryFolder {
 public:
  static Result<std::unique_ptr<TemporaryFolder>> Make() {
    std::error_code error;
    std::string pattern = (fs::temp_directory_path(error) / "inferscale-doctor-XXXXXX").string();
    if (error || mkdtemp(pattern.data()) == nullptr) {
      return FailedPrecondition(
          "no temporary folder can be made: set TMPDIR to one that can be written");
    }
    return std::unique_ptr<TemporaryFolder>(new TemporaryFolder(pattern));
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  explicit TemporaryFolder(fs::path path) : path_(std::move(path)) {}
  const fs::path path_;
};

Check CheckCpu() {
  std::string features;
#if defined(__x86_64__)
  const auto add = [&](bool supported, const char* name) {
    if (supported) features += (features.empty() ? "" : ", ") + std::string(name);
  };
  add(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"), "AVX2 with FMA");
  add(__builtin_cpu_supports("avx512f"), "AVX-512");
  add(__builtin_cpu_supports("avx512vnni"), "VNNI");
  if (features.empty()) features = "no AVX2: models run several times slower than elsewhere";
#else
  features = "not x86-64: built for what the compiler found";
#endif
  const std::int32_t cores = PhysicalCores();
  return {"cpu", true, std::to_string(cores) + (cores == 1 ? " core; " : " cores; ") + features};
}

/// A folder that does not exist is judged by the nearest one that does.
Check CheckFolder(const Config& config, std::unique_ptr<Catalog>* catalog) {
  Result<std::unique_ptr<Catalog>> opened = OpenCatalog(config);
  if (!opened.ok()) return {"data_folder", false, opened.status().message()};
  *catalog = *std::move(opened);
  std::error_code error;
  const fs::perms mode = fs::status(config.data_dir, error).permissions();
  const bool open = (mode & (fs::perms::group_all | fs::perms::others_all)) != fs::perms::none;
  const std::string path = config.data_dir.string();
  if (!error && open) {
    return {"data_folder", false, path + " can be entered by others: run chmod 700 on it"};
  }
  return {"data_folder", true, path + " can be written, by you alone"};
}

Check CheckDisk(const Config& config, std::int64_t bytes_a_fact) {
  const Result<std::int64_t> free = FreeDiskBytes(config.data_dir);
  if (!free.ok()) return {"disk", false, free.status().message()};
  std::string detail = FormatByteCount(*free) + " free, of which KV may take " +
                       FormatByteCount(config.kv_file_bytes);
  if (bytes_a_fact > 0) {
    detail += ": about " + std::to_string(std::min(*free, config.kv_file_bytes) / bytes_a_fact) +
              " memories";
  }
  const bool enough = *free >= kLeastFreeDiskBytes;
  if (!enough) detail += "; free some, or move --data-dir";
  return {"disk", enough, detail};
}

Check CheckMemory(const Config& config) {
  const std::int64_t available = AvailableMemoryBytes();
  const std::string free =
      available == 0 ? "free memory unknown" : FormatByteCount(available) + " free";
  const Result<GgufMetadata> metadata = ReadGgufMetadata(config.model);
  if (!metadata.ok()) return {"memory", true, free + "; no plan without a model"};
  const Result<MemoryPlan> plan = PlanMemory(*metadata, EngineOptions(config, ""), available);
  if (!plan.ok()) return {"memory", false, plan.status().message()};
  return {"memory", true,
          free + "; planned: " + plan->ToString() + (plan->note.empty() ? "" : "; " + plan->note)};
}

Check CheckEmbedder(const Config& config, std::shared_ptr<Embedder>* embedder) {
  Result<std::shared_ptr<Embedder>> opened = OpenEmbedder(config, nullptr);
  if (!opened.ok()) return {"embedder", false, opened.status().message()};
  const std::string text = "Where does Maya work since she moved to Porto?";
  const auto start = std::chrono::steady_clock::now();
  const Result<std::vector<std::vector<float>>> vectors = (*opened)->Embed(std::span(&text, 1));
  if (!vectors.ok()) return {"embedder", false, vectors.status().message()};
  const double ms = MillisecondsSince(start);
  *embedder = *std::move(opened);
  return {"embedder", true,
          std::to_string((*embedder)->dimensions()) + " dimensions, " + Milliseconds(ms) +
              " a question"};
}

Check CheckRetrieval(const Config& config) {
  const Result<std::shared_ptr<VectorMemory>> memory = MakeVectorMemory(config.retrieval_device);
  if (!memory.ok()) return {"retrieval", false, memory.status().message()};
  return {"retrieval", true, "vectors on " + config.retrieval_device};
}

Check CheckModel(const Config& config, const fs::path& folder, std::shared_ptr<Engine>* engine) {
  const auto start = std::chrono::steady_clock::now();
  Result<std::shared_ptr<Engine>> opened = OpenEngine(config, folder);
  if (!opened.ok()) return {"model", false, opened.status().message()};
  *engine = *std::move(opened);
  const EngineCapabilities& able = (*engine)->capabilities();
  return {
      "model", true,
      (UsesVllm(config) ? ModelName(config, engine->get()) + " at " + config.vllm_url + " ready in "
                        : config.model.filename().string() + " loaded in ") +
          Milliseconds(MillisecondsSince(start)) + "; " + std::to_string(able.parallel_sequences) +
          " × " + std::to_string(able.context_tokens) + " tokens" +
          (able.system_role ? "" : "; its template has no system role, which is coped with")};
}

Check CheckInjection(const Engine& engine) {
  const EngineCapabilities& able = engine.capabilities();
  if (able.kv_injection) {
    return {"kv_injection", true,
            "the rotation of keys was measured, and moving KV to other positions is exact"};
  }
  return {"kv_injection", false,
          able.kv_refusal + ": memories are served as text; use another model for fast ones"};
}

/// A service on parts that are open already, with a catalog of its own; works when asked to.
Result<std::unique_ptr<MemoryService>> ServiceOver(const Config& config, const fs::path& folder,
                                                   std::shared_ptr<Embedder> embedder,
                                                   std::shared_ptr<Engine> engine) {
  CatalogOptions catalog_options;
  catalog_options.folder = folder;
  INFERSCALE_ASSIGN_OR_RETURN(std::unique_ptr<Catalog> catalog,
                              OpenSqliteCatalog(std::move(catalog_options)));
  MemoryServiceOptions options;
  options.recipe = config.recipe;
  options.background = false;
  INFERSCALE_ASSIGN_OR_RETURN(options.codec, ParseKvCodec(config.codec));
  options.codec = CodecOf(engine.get(), options.codec);
  return MemoryService::Create(std::move(catalog), std::move(embedder), std::move(engine), nullptr,
                               std::move(options));
}

struct EncodeCost {
  Check check;
  std::int64_t bytes_a_fact = 0;
};

/// A chat that has to use the stored facts.
Status CheckWholeWay(MemoryService& service, const Scope& scope, std::string* detail) {
  ChatRequest request;
  request.scope = scope;
  request.messages = {{"user", "Where did Maya walk on day 3?", ""}};
  request.sampling.max_tokens = 8;
  INFERSCALE_ASSIGN_OR_RETURN(const ChatReport report, service.ChatBlocking(std::move(request)));
  const GenerationReport& generation = report.generation;
  INFERSCALE_RETURN_IF_ERROR(generation.status);
  if (generation.injected_tokens <= 0) {
    std::string why;
    for (const Fallback& fallback : generation.fallbacks) {
      why += " " + fallback.reason + " " + std::to_string(fallback.count);
    }
    return FailedPrecondition("a chat injected nothing:" + why);
  }
  *detail += "; a chat injected " + std::to_string(generation.injected_tokens) + " of " +
             std::to_string(generation.prompt_tokens) + " tokens, first token after " +
             Milliseconds(generation.ttft_ms);
  return OkStatus();
}

EncodeCost EncodeFacts(const Config& config, MemoryService& service, const Scope& scope,
                       Engine& engine) {
  EncodeCost cost;
  const auto failed = [&](const Status& status) {
    cost.check.detail = status.message();
    return cost;
  };
  std::vector<NewFact> facts;
  for (std::int64_t i = 0; i < kEncodedFacts; ++i) {
    NewFact item;
    item.fact.text =
        "On day " + std::to_string(i + 1) +
        " of the trip Maya walked along the river and wrote a letter to her brother Tom.";
    facts.push_back(std::move(item));
  }
  const KvStoreStats before = engine.StoreStats();  // vLLM's store is not in the folder
  const Result<IngestOutcome> stored = service.AddFacts(scope, {}, std::move(facts));
  if (!stored.ok()) return failed(stored.status());
  const auto start = std::chrono::steady_clock::now();
  const Status waited = service.WaitIdle();
  if (!waited.ok()) return failed(waited);
  const double ms = MillisecondsSince(start) / kEncodedFacts;
  const KvStoreStats stats = engine.StoreStats();
  const std::int64_t blocks = stats.file_blocks - before.file_blocks;
  if (blocks < kEncodedFacts) {
    cost.check.detail = "only " + std::to_string(blocks) + " of " + std::to_string(kEncodedFacts) +
                        " facts were encoded: see --log-level info";
    return cost;
  }
  cost.bytes_a_fact = (stats.file_bytes - before.file_bytes) / blocks;
  cost.check.ok = true;
  cost.check.detail = Milliseconds(ms) + " and " + FormatByteCount(cost.bytes_a_fact) +
                      " a fact (" + config.recipe + ", " +
                      std::string(KvCodecName(service.options().codec)) + ", " +
                      std::to_string(kEncodedFacts) + " facts of a sentence)";
  if (UsesVllm(config)) {
    const Status whole_way = CheckWholeWay(service, scope, &cost.check.detail);
    cost.check.ok = whole_way.ok();
    if (!whole_way.ok()) cost.check.detail += "; " + whole_way.message();
  }
  return cost;
}

/// Encodes a handful of facts in a folder of its own.
EncodeCost CheckEncoding(const Config& config, const fs::path& folder,
                         std::shared_ptr<Embedder> embedder,
                         const std::shared_ptr<Engine>& engine) {
  EncodeCost cost;
  Scope scope;
  scope.user = "doctor";
  Result<std::unique_ptr<MemoryService>> service =
      ServiceOver(config, folder, std::move(embedder), engine);
  if (service.ok()) {
    cost = EncodeFacts(config, **service, scope, *engine);
  } else {
    cost.check.detail = service.status().message();
  }
  cost.check.name = "encoding";
  if (!service.ok() || !UsesVllm(config)) return cost;
  // The folder goes with all that is in it; vLLM's store does not, whatever became of the check.
  Status erased = (*service)->ForgetAll(scope).status();
  if (erased.ok()) erased = (*service)->WaitIdle();
  cost.check.ok = cost.check.ok && erased.ok();
  cost.check.detail += erased.ok() ? "; all of it was erased again"
                                   : "; its facts could not be erased again: " + erased.message();
  return cost;
}

struct ExpectedFacts {
  const char* said;
  std::vector<std::vector<const char*>>
      mentions;  ///< each needs one of its words; none: no fact at all
};

/// What is wrong with the facts that a model finds in a small conversation; empty: nothing.
std::string JudgeExtraction(Extractor& extractor) {
  const std::vector<ExpectedFacts> turns = {
      {"I moved from Oslo to Porto in March, and I work as a nurse there.", {{"Porto"}, {"nurse"}}},
      {"My brother Tom is allergic to peanuts.", {{"Tom", "brother"}, {"peanut"}}},
      {"Good morning! How are you today?", {}},
  };
  for (const ExpectedFacts& expected : turns) {
    ExtractRequest request;
    Turn turn;
    turn.role = "user";
    turn.name = "Maya";
    turn.content = expected.said;
    request.turns.push_back(std::move(turn));
    const Result<std::vector<ExtractedFact>> facts = extractor.Extract(request);
    if (!facts.ok()) return facts.status().message();
    std::string all;
    for (const ExtractedFact& fact : *facts) all += CaseFold(fact.text) + "\n";
    if (expected.mentions.empty() && !facts->empty()) return "it makes facts of a greeting";
    for (const std::vector<const char*>& words : expected.mentions) {
      const bool found = std::any_of(words.begin(), words.end(), [&](const char* word) {
        return all.find(CaseFold(word)) != std::string::npos;
      });
      if (!found) {
        return std::string("it misses \"") + words.front() + "\" in \"" + expected.said + "\"";
      }
    }
  }
  return "";
}

Check CheckExtraction(const Config& config, const std::shared_ptr<Engine>& engine,
                      Catalog* catalog) {
  Check check{"extraction", false, "", false};
  if (!config.extractor_url.empty()) {
    Result<CompletionFunction> complete =
        MakeEndpointCompletion(config.extractor_url, config.extractor_model, config.extractor_key);
    if (!complete.ok()) {
      check.detail = complete.status().message();
      return check;
    }
    LlmExtractor extractor(*std::move(complete));
    const std::string wrong = JudgeExtraction(extractor);
    check.ok = wrong.empty();
    check.detail = check.ok ? "the extraction server finds the facts of a small conversation"
                            : "the extraction server is not fit: " + wrong;
    return check;
  }
  LlmExtractor extractor(EngineCompletion(engine));
  const std::string wrong = JudgeExtraction(extractor);
  check.ok = wrong.empty();
  check.detail =
      check.ok ? "the model finds the facts of a small conversation: auto means llm now"
               : "the model cannot extract facts (" + wrong +
                     "): turns are kept verbatim; a larger model or --extractor-url does better";
  if (catalog == nullptr) return check;
  const std::string fingerprint = HexEncode(engine->fingerprint());
  const Result<std::string> passed = catalog->GetMeta(meta_names::kExtractionCheck);
  Status saved = passed.status();
  if (passed.ok() && check.ok && *passed != fingerprint) {
    saved = catalog->SetMeta(meta_names::kExtractionCheck, fingerprint);
  } else if (passed.ok() && !check.ok && *passed == fingerprint) {
    saved = catalog->SetMeta(meta_names::kExtractionCheck, "");
  }
  if (!saved.ok()) check.detail += "; not remembered: " + saved.message();
  return check;
}

/// Compares answers from KV with answers from text, and keeps the verdict for serving.
Check CheckAccuracy(const Config& config, const fs::path& folder,
                    std::shared_ptr<Embedder> embedder, const std::shared_ptr<Engine>& engine,
                    Catalog* catalog) {
  Check check{"accuracy", false, "", true, nullptr};
  const InterruptScope interrupts(2);
  EvalContext context;
  context.open_service = [&](const EvalServiceOptions& options) {
    return ServiceOver(config, options.folder, embedder, engine);
  };
  context.out = &std::cout;
  context.progress = &std::cerr;
  context.progress_is_terminal = isatty(STDERR_FILENO) == 1;
  context.stop = &InterruptScope::Flag();
  std::string encoding_id;
  const Result<AccuracyVerdict> verdict = RunAccuracyCheck(context, folder, &encoding_id);
  if (!verdict.ok()) {
    check.detail = verdict.status().message();
    return check;
  }
  check.ok = verdict->passed;
  check.figures = AccuracyJson(*verdict);
  check.detail = config.recipe + ", " + config.codec + ": " + verdict->ToString();
  for (const std::string& reason : verdict->reasons) check.detail += "; " + reason;
  if (!check.ok) {
    check.detail +=
        "; memories are served as text unless --accuracy-gate is ignore: try another --recipe, "
        "--codec or model";
  }
  if (catalog != nullptr) {
    const Status saved = StoreAccuracyVerdict(*catalog, encoding_id, *verdict);
    if (!saved.ok()) check.detail += "; not remembered: " + saved.message();
  }
  return check;
}

Result<std::vector<Check>> RunChecks(const Config& config, bool accuracy) {
  std::vector<Check> checks;
  const auto add = [&](Check check) {
    checks.push_back(std::move(check));
    return checks.back().ok;
  };
  INFERSCALE_ASSIGN_OR_RETURN(const std::unique_ptr<TemporaryFolder> folder,
                              TemporaryFolder::Make());
  add(CheckCpu());
  std::unique_ptr<Catalog> catalog;
  add(CheckFolder(config, &catalog));
  if (!UsesVllm(config)) add(CheckMemory(config));
  std::shared_ptr<Embedder> embedder;
  add(CheckEmbedder(config, &embedder));
  if (config.retrieval_device != "cpu") add(CheckRetrieval(config));
  std::shared_ptr<Engine> engine;
  std::int64_t bytes_a_fact = 0;
  if (add(CheckModel(config, folder->path(), &engine))) {
    if (add(CheckInjection(*engine)) && embedder != nullptr) {
      EncodeCost cost = CheckEncoding(config, folder->path() / "data", embedder, engine);
      bytes_a_fact = cost.bytes_a_fact;
      add(std::move(cost.check));
      if (accuracy) {
        add(CheckAccuracy(config, folder->path() / "accuracy", embedder, engine, catalog.get()));
      }
    } else if (accuracy) {
      add({"accuracy", false, "not checked: see above", false, nullptr});
    }
  }
  if (engine != nullptr || !config.extractor_url.empty()) {
    add(CheckExtraction(config, engine, catalog.get()));
  }
  add(CheckDisk(config, bytes_a_fact));
  return checks;
}

Result<int> Doctor(CliContext& context, bool accuracy) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<Check> checks,
                              RunChecks(context.config(), accuracy));
  bool ok = true;
  json list = json::array();
  for (const Check& check : checks) {
    ok = ok && (check.ok || !check.required);
    list.push_back({{"name", check.name}, {"ok", check.ok}, {"detail", check.detail}});
    if (!check.figures.is_null()) list.back().update(check.figures);
    if (!context.json) {
      const char* mark = check.ok ? "ok  " : check.required ? "FAIL" : "note";
      std::cout << mark << "  " << check.name << ": " << EscapeForTerminal(check.detail) << '\n';
    }
  }
  if (context.json) {
    PrintJson({{"ok", ok}, {"checks", std::move(list)}});
  } else {
    std::cout << (ok ? "All is fit.\n" : "Not all is fit: see FAIL above for what to do.\n");
  }
  return ok ? 0 : 1;
}

}  // namespace

void AddDoctorCommand(CLI::App& app, std::vector<Command>* commands) {
  CLI::App* doctor = app.add_subcommand(
      "doctor", "Check model, rotation, extraction, memory, disk and CPU, and say what to do");
  auto accuracy = std::make_shared<bool>(false);
  doctor->add_flag(
      "--accuracy", *accuracy,
      "Also ask built-in questions with memories as text and as KV (minutes), and keep "
      "the verdict: KV of a model that fails is not served");
  doctor->footer("Example:\n  inferscale doctor --accuracy --model ~/models/Qwen3-4B-Q4_K_M.gguf");
  commands->push_back(
      {doctor, [accuracy](CliContext& context) { return Doctor(context, *accuracy); }});
}

}  // namespace inferscale
