#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "eval/commands.h"
#include "eval/dataset.h"
#include "eval/evaluation.h"

namespace inferscale {
namespace {

struct DatasetFormat {
  const char* name;
  const char* description;
  const char* footer;
  Result<EvalDataset> (*load)(const std::filesystem::path&);
};

constexpr DatasetFormat kFormats[] = {
    {"locomo", "LoCoMo's long conversations and questions",
     "Example: inferscale eval locomo locomo10.json --k 5,20,50 --modes none,text,kv --recipes "
     "primer,bare,window:20 --codecs f16,int4 --questions 100 --seed 1 --json",
     LoadLocomo},
    {"longmemeval", "LongMemEval's questions, each with a history of its own",
     "Example: inferscale eval longmemeval longmemeval_s.json --k 20 --questions 50",
     LoadLongMemEval},
    {"jsonl", "Histories, facts and questions of your own, one history a line",
     "The format is described in docs/measuring.md.\n"
     "Example: inferscale eval jsonl histories.jsonl --k 5,20",
     LoadHistoryLines},
};

void AddEvalOptions(CLI::App& app, EvalOptions& options) {
  app.add_option("--k", options.ks, "Numbers of facts")
      ->delimiter(',')
      ->check(CLI::Range(1, 200))
      ->capture_default_str();
  app.add_option("--modes", options.modes, "none, text, kv")
      ->delimiter(',')
      ->check(CLI::IsMember({"none", "text", "kv"}))
      ->capture_default_str();
  app.add_option("--recipes", options.recipes, "Encoding recipes")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--codecs", options.codecs, "f32, f16, bf16, int8, int4")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--best", options.best,
                 "Of the facts served as KV, compute this many of the best instead")
      ->delimiter(',')
      ->check(CLI::Range(0, 20))
      ->capture_default_str();
  app.add_option("--categories", options.categories, "Only these categories of question")
      ->delimiter(',');
  app.add_option("--conversations", options.conversations,
                 "Only these conversations, of the questions that are drawn")
      ->delimiter(',');
  app.add_option("--ingest", options.ingest,
                 "facts: those of the file, its turns if it has none; verbatim: every turn is a "
                 "fact; extract: what the extractor makes of the turns")
      ->check(CLI::IsMember({"facts", "verbatim", "extract"}))
      ->capture_default_str();
  app.add_option("--system", options.system,
                 "System message in front of every prompt: a text file, or tokens:N of a built-in "
                 "one with tool descriptions");
  app.add_option("--names", options.names,
                 "given: facts have their speaker's name; text: none has, its text says whom it is "
                 "about; user: the same, with every speaker \"the user\", in questions too; none: "
                 "no name, and no subject in the text either")
      ->check(CLI::IsMember({"given", "text", "user", "none"}))
      ->capture_default_str();
  app.add_option("--profile", options.profile,
                 "Always serve this many of the owner's oldest facts in front of the others")
      ->check(CLI::Range(0, 200))
      ->capture_default_str();
  app.add_option("--questions", options.questions, "Questions, drawn by the seed; 0: all")
      ->check(CLI::Range(0, 1'000'000))
      ->capture_default_str();
  app.add_option("--seed", options.seed, "Of the draw and of the intervals")->capture_default_str();
  app.add_option("--generate", options.generate,
                 "Also answer greedily with this many tokens, for F1, BLEU-1 and exact match")
      ->check(CLI::Range(0, 256))
      ->capture_default_str();
  AddJudgeOptions(app, options.judge);
  app.add_option("--out", options.out,
                 "Folder of results and report; a stopped run goes on from it")
      ->capture_default_str();
}

}  // namespace

EvalCommand AddEvalCommand(CLI::App& parent) {
  auto options = std::make_shared<EvalOptions>();
  auto merge_options = std::make_shared<EvalMergeOptions>();
  CLI::App* app = parent.add_subcommand(
      "eval", "Compare answers with facts as KV and as text, question by question");
  app->require_subcommand(1)->fallthrough();
  app->footer("Example: inferscale eval locomo locomo10.json --k 5,20 --questions 50");
  std::vector<std::pair<CLI::App*, const DatasetFormat*>> datasets;
  for (const DatasetFormat& format : kFormats) {
    CLI::App* dataset = app->add_subcommand(format.name, format.description);
    dataset->fallthrough()->footer(format.footer);
    dataset->add_option("file", options->file, "The dataset")->required()->check(CLI::ExistingFile);
    AddEvalOptions(*dataset, *options);
    datasets.emplace_back(dataset, &format);
  }
  CLI::App* merge =
      app->add_subcommand("merge", "Put the results of several runs into one and report on them");
  merge->fallthrough();
  merge->add_option("folders", merge_options->folders, "Folders that were --out of the runs")
      ->required()
      ->check(CLI::ExistingDirectory);
  merge->add_option("--out", merge_options->out, "Folder of the merged results")->required();
  merge->add_option("--seed", merge_options->seed, "Of the intervals")->capture_default_str();
  merge->footer("Example: inferscale eval merge shard-1 shard-2 --out whole");
  return {app, [=](EvalContext& context) -> Status {
            if (merge->parsed()) return MergeEvaluations(context, *merge_options);
            for (const auto& [command, format] : datasets) {
              if (!command->parsed()) continue;
              INFERSCALE_ASSIGN_OR_RETURN(EvalDataset dataset, format->load(options->file));
              return RunEvaluation(context, *options, std::move(dataset));
            }
            return InvalidArgument("eval needs a dataset");
          }};
}

}  // namespace inferscale
