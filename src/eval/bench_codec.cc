#include "eval/bench.h"
#include "eval/progress.h"

namespace inferscale {
namespace {

constexpr std::int32_t kFacts = 20;

struct CodecQuestion {
  const EvalQuestion* question = nullptr;
  double text_logprob = 0;
};

}  // namespace

Result<BenchReport> BenchCodec(EvalContext& context, const BenchOptions& options) {
  INFERSCALE_ASSIGN_OR_RETURN(const EvalConversation demo, BuiltInDemo());
  Scope scope;
  scope.user = "inferscale-bench";
  const auto count =
      std::min<std::size_t>(options.questions > 0 ? options.questions : 10, demo.questions.size());
  std::vector<CodecQuestion> questions(count);
  BenchReport report;
  std::map<std::string, double> bytes_a_fact;
  for (const std::string& name : options.codecs) {
    // A folder a codec, so that the store's bytes are this codec's alone.
    INFERSCALE_ASSIGN_OR_RETURN(const WorkFolder folder, WorkFolder::Create({}));
    EvalServiceOptions service_options;
    service_options.folder = folder.path();
    service_options.threads = context.threads;
    INFERSCALE_ASSIGN_OR_RETURN(service_options.codec, ParseKvCodec(name));
    INFERSCALE_ASSIGN_OR_RETURN(EvalSession session, EvalSession::Open(context, service_options));
    if (!session.capabilities().kv_injection) return Unsupported(session.capabilities().kv_refusal);
    INFERSCALE_RETURN_IF_ERROR(
        session.Ingest(scope, demo, {.max_facts = static_cast<std::size_t>(options.facts)}));
    INFERSCALE_RETURN_IF_ERROR(session.WaitIdle("encoding facts in " + name));
    const KvStoreStats stats = session.engine().StoreStats();
    bytes_a_fact[name] = static_cast<double>(stats.file_bytes) /
                         static_cast<double>(std::max<std::int64_t>(stats.file_blocks, 1));

    EvalProgress progress(context, "questions in " + name, static_cast<std::int64_t>(count));
    std::vector<double> logprobs, differences;
    for (std::size_t i = 0; i < count; ++i) {
      INFERSCALE_RETURN_IF_ERROR(CheckStop(context));
      CodecQuestion& asked = questions[i];
      const bool first_codec = asked.question == nullptr;
      asked.question = &demo.questions[i * 7 % demo.questions.size()];
      INFERSCALE_ASSIGN_OR_RETURN(
          const std::vector<SearchHit> hits,
          session.service().Search(scope, asked.question->question, kFacts));
      const std::vector<Fact> facts = FactsOf(hits);
      if (first_codec) {
        INFERSCALE_ASSIGN_OR_RETURN(
            Composition text,
            session.Compose(scope, asked.question->question, facts, MemoryMode::kText));
        INFERSCALE_ASSIGN_OR_RETURN(const Answer answer,
                                    session.Score(std::move(text), asked.question->answer, false));
        asked.text_logprob = answer.logprob;
      }
      INFERSCALE_ASSIGN_OR_RETURN(
          Composition kv, session.Compose(scope, asked.question->question, facts, MemoryMode::kKv));
      INFERSCALE_ASSIGN_OR_RETURN(const Answer answer,
                                  session.Score(std::move(kv), asked.question->answer, false));
      logprobs.push_back(answer.logprob);
      differences.push_back(answer.logprob - asked.text_logprob);
      progress.Add();
    }
    const Interval interval = BootstrapMean(differences, 1);
    report.rows.push_back({{"codec", name},
                           {"bytes_per_fact", bytes_a_fact[name]},
                           {"blocks", stats.file_blocks},
                           {"k", kFacts},
                           {"logprob", Mean(logprobs)},
                           {"diff_to_text", Mean(differences)},
                           {"diff_low", interval.low},
                           {"diff_high", interval.high},
                           {"n", count}});
  }
  if (bytes_a_fact.contains("int4") && bytes_a_fact.contains("f16")) {
    report.claims.push_back({"bytes of the int4 store / the f16 store",
                             bytes_a_fact["int4"] / bytes_a_fact["f16"], 0.34, true});
  }
  return report;
}

}  // namespace inferscale
