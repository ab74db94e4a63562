#include "eval/demo_result.h"

#include <map>
#include <set>

namespace inferscale {
namespace {

const DemoResult::Ttft* FindTtft(const DemoResult& result, std::int32_t k, bool kv) {
  for (const auto& row : result.ttft) {
    if (row.k == k && row.kv == kv) return &row;
  }
  return nullptr;
}

std::set<std::int32_t> TtftKs(const DemoResult& result) {
  std::set<std::int32_t> ks;
  for (const auto& row : result.ttft) ks.insert(row.k);
  return ks;
}

}  // namespace

Table DemoTtftTable(const DemoResult& result) {
  Table table;
  table.header = {"facts (k)", "text TTFT ms",     "KV TTFT ms",        "text / KV",
                  "injected",  "computed with KV", "computed with text"};
  for (const std::int32_t k : TtftKs(result)) {
    const auto* text = FindTtft(result, k, false);
    const auto* kv = FindTtft(result, k, true);
    table.rows.push_back({std::to_string(k), text ? Decimal(text->ttft_ms, 0) : "-",
                          kv ? Decimal(kv->ttft_ms, 0) : "refused",
                          text && kv ? Decimal(text->ttft_ms / kv->ttft_ms, 1) + "x" : "-",
                          kv ? Decimal(kv->injected_tokens, 0) : "-",
                          kv ? Decimal(kv->computed_tokens, 0) : "-",
                          text ? Decimal(text->computed_tokens, 0) : "-"});
  }
  return table;
}

Table DemoAccuracyTable(const DemoResult& result) {
  Table table;
  table.header = {"facts (k)",          "served as",     "log-probability a token",
                  "difference to text", "top-1 as text", "questions"};
  std::map<std::int32_t, double> text;
  for (const auto& row : result.accuracy) {
    if (row.mode == "text") text[row.k] = row.logprob;
  }
  for (const auto& row : result.accuracy) {
    const auto base = text.find(row.k);
    table.rows.push_back({std::to_string(row.k), row.mode, Decimal(row.logprob, 3),
                          base == text.end() ? "-" : Signed(row.logprob - base->second, 3),
                          Decimal(row.top1 * 100, 0) + " %", std::to_string(row.questions)});
  }
  return table;
}

nlohmann::ordered_json DemoJson(const DemoResult& result) {
  nlohmann::ordered_json json;
  json["ttft"] = nlohmann::ordered_json::array();
  for (const auto& row : result.ttft) {
    json["ttft"].push_back({{"k", row.k},
                            {"mode", row.kv ? "kv" : "text"},
                            {"ttft_ms", row.ttft_ms},
                            {"injected_tokens", row.injected_tokens},
                            {"computed_tokens", row.computed_tokens},
                            {"questions", row.questions}});
  }
  json["accuracy"] = nlohmann::ordered_json::array();
  for (const auto& row : result.accuracy) {
    json["accuracy"].push_back({{"k", row.k},
                                {"mode", row.mode},
                                {"logprob", row.logprob},
                                {"top1", row.top1},
                                {"questions", row.questions}});
  }
  json["model"] = result.model;
  json["recipe"] = result.recipe;
  json["codec"] = result.codec;
  json["facts"] = result.facts;
  json["encode_seconds"] = result.encode_seconds;
  json["store_bytes"] = result.store_bytes;
  json["prefill_tokens_a_second"] = result.prefill_tokens_a_second;
  json["total_seconds"] = result.total_seconds;
  if (!result.kv_refusal.empty()) json["kv_refused"] = result.kv_refusal;
  json["notes"] = result.notes;
  return json;
}

}  // namespace inferscale
