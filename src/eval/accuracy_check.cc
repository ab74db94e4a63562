#include "eval/accuracy_check.h"

#include <algorithm>

#include "base/clock.h"
#include "eval/progress.h"
#include "eval/table.h"

namespace inferscale {
namespace {

/// Tokens of text's first distribution that are kept for KL.
constexpr std::size_t kKeptTokens = 128;
/// Questions are taken at this stride, so that few of them are of every category.
constexpr std::size_t kQuestionStride = 7;

}  // namespace

AccuracyVerdict JudgeAccuracy(std::vector<AccuracyFigures> figures, TimeMs now,
                              const AccuracyBounds& bounds) {
  AccuracyVerdict verdict;
  verdict.time_ms = now;
  for (const AccuracyFigures& at : figures) {
    const std::string place = "at k = " + std::to_string(at.k) + " ";
    if (at.diff < bounds.least_diff && at.diff_high < 0) {
      verdict.reasons.push_back(place + "the right answer is " + Decimal(-at.diff, 2) +
                                " a token less likely than with text, more than " +
                                Decimal(-bounds.least_diff, 2));
    }
    if (at.kl > std::max(bounds.most_kl, at.kl_no_facts)) {
      verdict.reasons.push_back(place + "the first token is farther from text's (KL " +
                                Decimal(at.kl, 2) + ") than without memories (" +
                                Decimal(at.kl_no_facts, 2) + ")");
    }
    if (at.top1 < bounds.least_top1) {
      verdict.reasons.push_back(place + "the likeliest first token is text's in only " +
                                Decimal(at.top1 * 100, 0) + " % of the answers");
    }
  }
  if (figures.empty()) verdict.reasons.emplace_back("nothing was measured");
  verdict.passed = verdict.reasons.empty();
  verdict.figures = std::move(figures);
  return verdict;
}

AccuracyCheck::AccuracyCheck(EvalConversation conversation, AccuracyCheckOptions options)
    : conversation_(std::move(conversation)), options_(std::move(options)) {
  scope_.user = "inferscale-accuracy-" + conversation_.id;
}

Status AccuracyCheck::AskWithText(EvalSession& session, Item* item) {
  const std::string& question = item->question->question;
  const std::string& gold = item->question->answer;
  INFERSCALE_ASSIGN_OR_RETURN(Composition none,
                              session.Compose(scope_, question, {}, MemoryMode::kOff));
  INFERSCALE_ASSIGN_OR_RETURN(const Answer no_facts, session.Score(std::move(none), gold, true));
  for (const std::int32_t k : options_.ks) {
    INFERSCALE_ASSIGN_OR_RETURN(
        Composition composition,
        session.Compose(scope_, question, FirstFacts(item->facts, k), MemoryMode::kText));
    INFERSCALE_ASSIGN_OR_RETURN(const Answer answer,
                                session.Score(std::move(composition), gold, true));
    item->text_logprobs.push_back(answer.logprob);
    item->text.push_back(Sparsify(answer.first_logprobs, kKeptTokens));
    item->kl_no_facts.push_back(KlDivergence(item->text.back(), no_facts.first_logprobs));
  }
  return OkStatus();
}

Result<std::vector<AccuracyFigures>> AccuracyCheck::Measure(EvalContext& context,
                                                            EvalSession& session) {
  if (options_.ks.empty() || conversation_.questions.empty())
    return InvalidArgument("an accuracy check needs a question and a number of facts");
  if (!session.capabilities().kv_injection) {
    return Unsupported("KV of this model cannot be used (" + session.capabilities().kv_refusal +
                       "): there is nothing to compare with text");
  }
  INFERSCALE_RETURN_IF_ERROR(
      session.Ingest(scope_, conversation_, {.max_facts = options_.max_facts}));
  INFERSCALE_RETURN_IF_ERROR(
      session.WaitIdle("encoding facts, " + session.service().options().recipe));
  if (items_.empty()) {
    const std::size_t all = conversation_.questions.size();
    const std::size_t count = options_.questions == 0 ? all : std::min(options_.questions, all);
    const std::size_t stride = all % kQuestionStride == 0 ? 1 : kQuestionStride;
    for (std::size_t i = 0; i < count; ++i) {
      Item item;
      item.question = &conversation_.questions[i * stride % all];
      INFERSCALE_ASSIGN_OR_RETURN(
          const std::vector<SearchHit> hits,
          session.service().Search(scope_, item.question->question,
                                   *std::max_element(options_.ks.begin(), options_.ks.end())));
      item.facts = FactsOf(hits);
      items_.push_back(std::move(item));
    }
  }
  const std::size_t ks = options_.ks.size();
  std::vector<std::vector<double>> differences(ks), top1(ks), kl(ks), kl_no_facts(ks);
  EvalProgress progress(context, "questions, " + session.service().options().recipe,
                        static_cast<std::int64_t>(items_.size()));
  for (Item& item : items_) {
    INFERSCALE_RETURN_IF_ERROR(CheckStop(context));
    if (item.text.empty()) INFERSCALE_RETURN_IF_ERROR(AskWithText(session, &item));
    for (std::size_t i = 0; i < ks; ++i) {
      INFERSCALE_ASSIGN_OR_RETURN(
          Composition composition,
          session.Compose(scope_, item.question->question, FirstFacts(item.facts, options_.ks[i]),
                          MemoryMode::kKv));
      INFERSCALE_ASSIGN_OR_RETURN(
          const Answer answer, session.Score(std::move(composition), item.question->answer, true));
      if (answer.generation.injected_tokens == 0) {
        return Internal(
            "no KV was injected, so nothing was compared with text: run with --log-level info and "
            "report this");
      }
      differences[i].push_back(answer.logprob - item.text_logprobs[i]);
      top1[i].push_back(Sparsify(answer.first_logprobs, 1).top() == item.text[i].top() ? 1 : 0);
      kl[i].push_back(KlDivergence(item.text[i], answer.first_logprobs));
      kl_no_facts[i].push_back(item.kl_no_facts[i]);
    }
    progress.Add();
  }
  std::vector<AccuracyFigures> figures;
  for (std::size_t i = 0; i < ks; ++i) {
    const Interval interval = BootstrapMean(differences[i], options_.seed);
    figures.push_back({options_.ks[i], static_cast<std::int64_t>(differences[i].size()),
                       Mean(differences[i]), interval.low, interval.high, Mean(top1[i]),
                       Mean(kl[i]), Mean(kl_no_facts[i])});
  }
  return figures;
}

Result<AccuracyVerdict> RunAccuracyCheck(EvalContext& context, const std::filesystem::path& folder,
                                         std::string* encoding_id) {
  INFERSCALE_ASSIGN_OR_RETURN(EvalConversation history, BuiltInDemo());
  EvalServiceOptions options;
  options.folder = folder;
  INFERSCALE_ASSIGN_OR_RETURN(EvalSession session, EvalSession::Open(context, options));
  AccuracyCheck check(std::move(history), {});
  INFERSCALE_ASSIGN_OR_RETURN(std::vector<AccuracyFigures> figures,
                              check.Measure(context, session));
  *encoding_id = session.service().encoding_id();
  return JudgeAccuracy(std::move(figures), NowMs());
}

nlohmann::json AccuracyJson(const AccuracyVerdict& verdict) {
  const AccuracyBounds bounds;
  nlohmann::json figures = nlohmann::json::array();
  for (const AccuracyFigures& at : verdict.figures) {
    figures.push_back(ToJson(at));
  }
  return {{"passed", verdict.passed},
          {"bounds",
           {{"least_diff", bounds.least_diff},
            {"most_kl", bounds.most_kl},
            {"least_top1", bounds.least_top1}}},
          {"figures", std::move(figures)},
          {"reasons", verdict.reasons}};
}

}  // namespace inferscale
