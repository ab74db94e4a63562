#include "memory/accuracy_verdict.h"

#include <cstdio>

#include <nlohmann/json.hpp>

#include "base/clock.h"

namespace inferscale {
namespace {

using nlohmann::json;

std::string MetaName(const std::string& encoding_id) { return "accuracy.verdict." + encoding_id; }

/// Every member must be there and of its type.
std::optional<AccuracyVerdict> FromJson(const json& stored) {
  const auto number = [](const json& object, const char* name, auto* out) {
    const auto found = object.find(name);
    if (found == object.end() || !found->is_number()) return false;
    *out = found->template get<std::decay_t<decltype(*out)>>();
    return true;
  };
  if (!stored.is_object()) return std::nullopt;
  AccuracyVerdict verdict;
  const auto passed = stored.find("passed"), figures = stored.find("figures"),
             reasons = stored.find("reasons");
  if (passed == stored.end() || !passed->is_boolean() || figures == stored.end() ||
      !figures->is_array() || reasons == stored.end() || !reasons->is_array() ||
      !number(stored, "time_ms", &verdict.time_ms)) {
    return std::nullopt;
  }
  verdict.passed = passed->get<bool>();
  for (const json& row : *figures) {
    AccuracyFigures at;
    if (!row.is_object() || !number(row, "k", &at.k) || !number(row, "questions", &at.questions) ||
        !number(row, "diff", &at.diff) || !number(row, "diff_low", &at.diff_low) ||
        !number(row, "diff_high", &at.diff_high) || !number(row, "top1", &at.top1) ||
        !number(row, "kl", &at.kl) || !number(row, "kl_no_facts", &at.kl_no_facts)) {
      return std::nullopt;
    }
    verdict.figures.push_back(at);
  }
  for (const json& reason : *reasons) {
    if (!reason.is_string()) return std::nullopt;
    verdict.reasons.push_back(reason.get<std::string>());
  }
  return verdict;
}

}  // namespace

std::string AccuracyVerdict::ToString() const {
  std::string text = (passed ? "passed on " : "failed on ") + FormatDate(time_ms) + ": ";
  for (const AccuracyFigures& at : figures) {
    char part[160];
    std::snprintf(part, sizeof(part),
                  "%sdiff to text %+.2f [%+.2f, %+.2f], top-1 %.0f %%, KL %.2f at k = %d",
                  &at == figures.data() ? "" : "; ", at.diff, at.diff_low, at.diff_high,
                  at.top1 * 100, at.kl, at.k);
    text += part;
  }
  return text;
}

json ToJson(const AccuracyFigures& at) {
  return {{"k", at.k},
          {"questions", at.questions},
          {"diff", at.diff},
          {"diff_low", at.diff_low},
          {"diff_high", at.diff_high},
          {"top1", at.top1},
          {"kl", at.kl},
          {"kl_no_facts", at.kl_no_facts}};
}

Status StoreAccuracyVerdict(Catalog& catalog, const std::string& encoding_id,
                            const AccuracyVerdict& verdict) {
  json figures = json::array();
  for (const AccuracyFigures& at : verdict.figures) {
    figures.push_back(ToJson(at));
  }
  const json stored{{"passed", verdict.passed},
                    {"time_ms", verdict.time_ms},
                    {"figures", std::move(figures)},
                    {"reasons", verdict.reasons}};
  return catalog.SetMeta(MetaName(encoding_id),
                         stored.dump(-1, ' ', false, json::error_handler_t::replace));
}

Result<std::optional<AccuracyVerdict>> LoadAccuracyVerdict(Catalog& catalog,
                                                           const std::string& encoding_id) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::string text, catalog.GetMeta(MetaName(encoding_id)));
  return FromJson(json::parse(text, nullptr, /*allow_exceptions=*/false));
}

}  // namespace inferscale
