#include "eval/results.h"

#include <algorithm>
#include <system_error>

#include "base/files.h"
#include "eval/json_reader.h"

namespace inferscale {
namespace {

constexpr std::size_t kMaxFileBytes = std::size_t{2} << 30;

double NumberOr(const nlohmann::json& json, const char* name, double otherwise) {
  const auto found = json.find(name);
  return found != json.end() && found->is_number() ? found->get<double>() : otherwise;
}

std::int32_t CountOr(const nlohmann::json& json, const char* name, std::int32_t otherwise) {
  return static_cast<std::int32_t>(std::clamp(NumberOr(json, name, otherwise), 0.0, 2e9));
}

std::optional<bool> BooleanIn(const nlohmann::json& json, const char* name) {
  const auto found = json.find(name);
  if (found == json.end() || !found->is_boolean()) return std::nullopt;
  return found->get<bool>();
}

/// Yes or no of a way of serving and of text, on the same questions.
struct PairedLabels {
  std::int64_t pairs = 0, right = 0, only_this = 0, only_text = 0;

  void Add(std::optional<bool> label, std::optional<bool> text) {
    if (!label || !text) return;
    ++pairs;
    right += *label;
    only_this += *label && !*text;
    only_text += *text && !*label;
  }
  double Share() const {
    return pairs == 0 ? 0 : static_cast<double>(right) / static_cast<double>(pairs);
  }
  double P() const { return McNemarExact(only_this, only_text); }
};

std::int32_t ModeRank(const std::string& mode) {
  return mode == "none" ? 0 : mode == "text" ? 1 : 2;
}

ResultKey TextKey(const std::string& question, std::int32_t k) {
  return {question, k, "text", "", ""};
}

}  // namespace

nlohmann::json ToJson(const QuestionResult& result) {
  nlohmann::json json{{"question", result.key.question},
                      {"k", result.key.k},
                      {"mode", result.key.mode},
                      {"recipe", result.key.recipe},
                      {"codec", result.key.codec},
                      {"best", result.key.best},
                      {"category", result.category},
                      {"adversarial", result.adversarial},
                      {"logprob", result.logprob},
                      {"top", result.top},
                      {"kl", result.kl},
                      {"ttft_ms", result.ttft_ms},
                      {"injected_tokens", result.injected_tokens},
                      {"computed_tokens", result.computed_tokens}};
  if (result.left_out > 0) json["left_out"] = result.left_out;
  if (result.not_injected > 0) json["not_injected"] = result.not_injected;
  if (!result.first.empty()) {
    nlohmann::json& first = json["first"] = nlohmann::json::array();
    for (const auto& [id, logprob] : result.first.logprobs) first.push_back({id, logprob});
  }
  if (result.answer) {
    json["answer"] = *result.answer;
    json["f1"] = result.f1;
    json["bleu1"] = result.bleu1;
    json["exact"] = result.exact;
  }
  if (!result.judged.model.empty()) {
    nlohmann::json& judged = json["judged"] = {{"model", result.judged.model}};
    if (result.judged.label) judged["label"] = *result.judged.label;
    if (result.judged.strict) judged["strict"] = *result.judged.strict;
  }
  return json;
}

Result<QuestionResult> QuestionResultFromJson(const nlohmann::json& json) {
  QuestionResult result;
  INFERSCALE_ASSIGN_OR_RETURN(result.key.question, RequiredString(json, "question", "result"));
  INFERSCALE_ASSIGN_OR_RETURN(result.key.mode, RequiredString(json, "mode", "result"));
  INFERSCALE_ASSIGN_OR_RETURN(result.key.recipe, RequiredString(json, "recipe", "result"));
  INFERSCALE_ASSIGN_OR_RETURN(result.key.codec, RequiredString(json, "codec", "result"));
  INFERSCALE_ASSIGN_OR_RETURN(result.category, RequiredString(json, "category", "result"));
  for (const char* name : {"k", "logprob", "top", "kl", "ttft_ms"}) {
    if (!json.contains(name) || !json[name].is_number()) {
      return InvalidArgument(std::string("result: \"") + name + "\" must be a number");
    }
  }
  result.key.k = CountOr(json, "k", 0);
  result.key.best = CountOr(json, "best", 0);
  result.left_out = CountOr(json, "left_out", 0);
  result.not_injected = CountOr(json, "not_injected", 0);
  result.adversarial = json.value("adversarial", nlohmann::json(false)) == true;
  result.logprob = NumberOr(json, "logprob", 0);
  result.top = static_cast<TokenId>(std::clamp(NumberOr(json, "top", -1), -1.0, 2e9));
  result.kl = NumberOr(json, "kl", 0);
  result.ttft_ms = NumberOr(json, "ttft_ms", 0);
  result.injected_tokens = CountOr(json, "injected_tokens", 0);
  result.computed_tokens = CountOr(json, "computed_tokens", 0);
  if (json.contains("first")) {
    for (const nlohmann::json& pair : json["first"]) {
      if (!pair.is_array() || pair.size() != 2 || !pair[0].is_number_integer() ||
          !pair[1].is_number()) {
        return InvalidArgument("result: \"first\" must be a list of [token, log-probability]");
      }
      result.first.logprobs.emplace_back(pair[0].get<TokenId>(), pair[1].get<float>());
    }
  }
  if (json.contains("answer")) {
    INFERSCALE_ASSIGN_OR_RETURN(result.answer, RequiredString(json, "answer", "result"));
    result.f1 = NumberOr(json, "f1", 0);
    result.bleu1 = NumberOr(json, "bleu1", 0);
    result.exact = json.value("exact", nlohmann::json(false)) == true;
  }
  if (json.contains("judged")) {
    const nlohmann::json& judged = json["judged"];
    INFERSCALE_ASSIGN_OR_RETURN(result.judged.model,
                                RequiredString(judged, "model", "result, judged"));
    result.judged.label = BooleanIn(judged, "label");
    result.judged.strict = BooleanIn(judged, "strict");
  }
  return result;
}

Result<std::size_t> ResultFile::Load(const std::string& text) {
  std::size_t number = 0, whole = 0;
  for (std::size_t end; (end = text.find('\n', whole)) != std::string::npos; whole = end + 1) {
    const std::string where = path_.string() + ":" + std::to_string(++number);
    INFERSCALE_ASSIGN_OR_RETURN(
        const nlohmann::json line,
        ParseCheckedJson(std::string_view(text).substr(whole, end - whole), where));
    if (number == 1) {
      if (!line.is_object() || !line.contains("header")) {
        return FailedPrecondition(where + ": no header; this is no file of results");
      }
      header_ = line["header"];
    } else if (line.is_object() && line.contains("retrieved")) {
      INFERSCALE_ASSIGN_OR_RETURN(const std::string question,
                                  RequiredString(line, "retrieved", where));
      retrieved_[question] = OptionalStrings(line, "facts");
    } else {
      Result<QuestionResult> result = QuestionResultFromJson(line);
      if (!result.ok()) return FailedPrecondition(where + ": " + result.status().message());
      const ResultKey key = result->key;
      results_[key] = std::move(*result);
    }
  }
  return whole;
}

Result<ResultFile> ResultFile::Read(const std::filesystem::path& path) {
  ResultFile file;
  file.path_ = path;
  INFERSCALE_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxFileBytes));
  INFERSCALE_ASSIGN_OR_RETURN(const std::size_t whole, file.Load(text));
  if (whole == 0) return FailedPrecondition(path.string() + " is empty");
  return file;
}

Result<ResultFile> ResultFile::Open(const std::filesystem::path& path,
                                    const nlohmann::json& header) {
  ResultFile file;
  file.path_ = path;
  std::error_code error;
  std::size_t whole = 0;
  if (std::filesystem::exists(path, error)) {
    INFERSCALE_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxFileBytes));
    INFERSCALE_ASSIGN_OR_RETURN(whole, file.Load(text));
    if (whole > 0 && file.header_ != header) {
      return FailedPrecondition(path.string() +
                                " holds the results of a run with other settings (" +
                                file.header_.dump() + "); give another folder with --out");
    }
    if (whole < text.size()) std::filesystem::resize_file(path, whole, error);
    if (error) return FailedPrecondition(path.string() + " cannot be written: " + error.message());
  }
  file.header_ = header;
  file.out_.open(path, std::ios::app | std::ios::binary);
  if (!file.out_) return FailedPrecondition(path.string() + " cannot be written");
  if (whole == 0) INFERSCALE_RETURN_IF_ERROR(file.Append({{"header", header}}));
  return file;
}

Status ResultFile::Append(const nlohmann::json& line) {
  out_ << line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << '\n' << std::flush;
  if (!out_) return ResourceExhausted(path_.string() + ": writing failed; is the disk full?");
  return OkStatus();
}

const QuestionResult* ResultFile::Find(const ResultKey& key) const {
  const auto found = results_.find(key);
  return found == results_.end() ? nullptr : &found->second;
}

const std::vector<std::string>* ResultFile::FindRetrieved(const std::string& question) const {
  const auto found = retrieved_.find(question);
  return found == retrieved_.end() ? nullptr : &found->second;
}

Status ResultFile::Add(QuestionResult result) {
  INFERSCALE_RETURN_IF_ERROR(Append(ToJson(result)));
  const ResultKey key = result.key;
  results_[key] = std::move(result);
  return OkStatus();
}

Status ResultFile::AddRetrieved(const std::string& question, std::vector<std::string> fact_ids) {
  INFERSCALE_RETURN_IF_ERROR(Append({{"retrieved", question}, {"facts", fact_ids}}));
  retrieved_[question] = std::move(fact_ids);
  return OkStatus();
}

std::vector<Summary> Summarize(const ResultFile& file, const std::vector<std::int32_t>& ks,
                               const SummaryFilter& filter, std::uint64_t seed) {
  struct Group {
    std::vector<double> logprobs, differences, f1, bleu1, exact, kl, top1, ttft_ms, left_out,
        not_injected;
    std::int64_t only_text = 0, only_this = 0;
    bool generated = true;
    PairedLabels judge, judge_strict;
  };
  std::map<
      std::tuple<std::int32_t, std::int32_t, std::string, std::string, std::string, std::int32_t>,
      Group>
      groups;
  const std::set<std::int32_t> wanted(ks.begin(), ks.end());
  for (const auto& [key, result] : file.results()) {
    if (result.adversarial != filter.adversarial || !filter.questions.contains(key.question))
      continue;
    if (!filter.category.empty() && result.category != filter.category) continue;
    for (const std::int32_t k : wanted) {
      if (key.mode != "none" && key.k != k) continue;
      const QuestionResult* text = file.Find(TextKey(key.question, k));
      if (text == nullptr) continue;
      Group& group = groups[{k, ModeRank(key.mode), key.mode, key.recipe, key.codec, key.best}];
      group.logprobs.push_back(result.logprob);
      group.differences.push_back(result.logprob - text->logprob);
      // "none" was compared with no particular k when it was asked: its KL is that of the first k.
      if (key.mode != "none") group.kl.push_back(result.kl);
      group.top1.push_back(result.top == text->top ? 1 : 0);
      group.ttft_ms.push_back(result.ttft_ms);
      group.left_out.push_back(result.left_out);
      group.not_injected.push_back(result.not_injected);
      if (!result.answer || !text->answer) {
        group.generated = false;
        continue;
      }
      group.f1.push_back(result.f1);
      group.bleu1.push_back(result.bleu1);
      group.exact.push_back(result.exact ? 1 : 0);
      if (result.judged.model == text->judged.model) {
        group.judge.Add(result.judged.label, text->judged.label);
        group.judge_strict.Add(result.judged.strict, text->judged.strict);
      }
      group.only_text += text->exact && !result.exact;
      group.only_this += result.exact && !text->exact;
    }
  }
  std::vector<Summary> rows;
  for (const auto& [name, group] : groups) {
    Summary row;
    std::int32_t rank = 0;
    std::tie(row.k, rank, row.mode, row.recipe, row.codec, row.best) = name;
    row.n = static_cast<std::int64_t>(group.logprobs.size());
    row.logprob = Mean(group.logprobs);
    row.diff = Mean(group.differences);
    row.diff_interval = BootstrapMean(group.differences, seed);
    row.generated = group.generated;
    row.f1 = Mean(group.f1);
    row.bleu1 = Mean(group.bleu1);
    row.exact = Mean(group.exact);
    row.mcnemar_p = McNemarExact(group.only_this, group.only_text);
    row.judged = group.judge.pairs;
    row.judged_strict = group.judge_strict.pairs;
    row.judge = group.judge.Share();
    row.judge_strict = group.judge_strict.Share();
    row.judge_p = group.judge.P();
    row.judge_strict_p = group.judge_strict.P();
    row.kl = Mean(group.kl);
    row.top1 = Mean(group.top1);
    row.ttft_ms = Median(group.ttft_ms);
    row.left_out = Mean(group.left_out);
    row.not_injected = Mean(group.not_injected);
    rows.push_back(std::move(row));
  }
  return rows;
}

nlohmann::ordered_json ToJson(const std::vector<Summary>& rows) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  const auto generated = [](const Summary& row, double value) {
    return row.generated ? nlohmann::ordered_json(value) : nlohmann::ordered_json(nullptr);
  };
  const auto judged = [](std::int64_t pairs, double value) {
    return pairs > 0 ? nlohmann::ordered_json(value) : nlohmann::ordered_json(nullptr);
  };
  for (const Summary& row : rows) {
    json.push_back({{"k", row.k},
                    {"mode", row.mode},
                    {"recipe", row.recipe},
                    {"codec", row.codec},
                    {"best", row.best},
                    {"n", row.n},
                    {"logprob", row.logprob},
                    {"diff", row.diff},
                    {"diff_low", row.diff_interval.low},
                    {"diff_high", row.diff_interval.high},
                    {"f1", generated(row, row.f1)},
                    {"bleu1", generated(row, row.bleu1)},
                    {"exact_match", generated(row, row.exact)},
                    {"mcnemar_p", generated(row, row.mcnemar_p)},
                    {"judge", judged(row.judged, row.judge)},
                    {"judge_p", judged(row.judged, row.judge_p)},
                    {"judge_strict", judged(row.judged_strict, row.judge_strict)},
                    {"judge_strict_p", judged(row.judged_strict, row.judge_strict_p)},
                    {"kl", row.mode == "none" ? nlohmann::ordered_json(nullptr)
                                              : nlohmann::ordered_json(row.kl)},
                    {"top1", row.top1},
                    {"ttft_ms", row.ttft_ms},
                    {"left_out", row.left_out},
                    {"not_injected", row.not_injected}});
  }
  return json;
}

}  // namespace inferscale
