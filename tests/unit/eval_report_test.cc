#include <algorithm>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/html.h"
#include "eval/demo_result.h"
#include "eval/eval_report.h"
#include "eval/html_page.h"
#include "eval/table.h"

namespace inferscale {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TEST(EscapeHtml, LeavesNothingThatStartsATagOrEndsAnAttribute) {
  EXPECT_EQ(EscapeHtml("<b a=\"1\" c='2'>&amp;"),
            "&lt;b a=&quot;1&quot; c=&#39;2&#39;&gt;&amp;amp;");
  EXPECT_EQ(EscapeHtml("绿色\n\t"), "绿色\n\t");
  EXPECT_EQ(EscapeHtml(std::string_view("a\0b\x1b", 4)),
            "a\xEF\xBF\xBD"
            "b\xEF\xBF\xBD");
  EXPECT_EQ(EscapeHtml("\xFF<"), "\xEF\xBF\xBD&lt;");
}

TEST(Table, AlignsByCharactersNotBytes) {
  Table table{{"name", "n"}, {{"é", "1"}, {"abcdef", "20"}}};
  EXPECT_EQ(table.ToText(), "  name     n\n  é        1\n  abcdef  20\n");
}

TEST(Table, EscapesPipesInMarkdown) {
  Table table{{"a", "b"}, {{"x|y", "line\nbreak"}}};
  EXPECT_EQ(table.ToMarkdown(), "| a | b |\n| --- | ---: |\n| x\\|y | line break |\n");
}

TEST(Decimal, RoundsAndShowsTheSign) {
  EXPECT_EQ(Decimal(12.345, 2), "12.35");
  EXPECT_EQ(Signed(0.5, 1), "+0.5");
  EXPECT_EQ(Signed(-0.04, 2), "-0.04");
  EXPECT_EQ(Decimal(std::numeric_limits<double>::quiet_NaN(), 1), "-");
}

DemoResult SampleResult() {
  DemoResult result;
  result.model = "<script>alert('model')</script>";
  result.recipe = "primer";
  result.codec = "int4";
  result.facts = 229;
  result.ttft = {{0, false, 100, 0, 90, 7},
                 {0, true, 60, 40, 50, 7},
                 {50, false, 8000, 0, 2000, 7},
                 {50, true, 160, 1940, 60, 7}};
  result.accuracy = {{50, "text", -1.5, 1.0, 10}, {50, "kv", -1.4, 0.9, 10}};
  result.answers = {{"<img src=x onerror=1>?", "\"gold\" & more", "</div><script>text</script>",
                     "kv\xFF", 20, 3000, 120}};
  result.notes = {"<b>note</b>"};
  return result;
}

TEST(DemoPage, IsSelfContainedAndEscaped) {
  const std::string page = DemoPage(SampleResult());
  EXPECT_THAT(page,
              AllOf(Not(HasSubstr("<script")), Not(HasSubstr("<img")), Not(HasSubstr("<b>note")),
                    Not(HasSubstr("http")), Not(HasSubstr("url(")), Not(HasSubstr("\xFF"))));
  EXPECT_THAT(page, AllOf(HasSubstr("&lt;script&gt;"), HasSubstr("&lt;img src=x"),
                          HasSubstr("&quot;gold&quot; &amp; more")));
  EXPECT_THAT(page, AllOf(HasSubstr("<svg"), HasSubstr("text-line"), HasSubstr("kv-line"),
                          HasSubstr("50.0x")));
}

TEST(DemoPage, SaysWhyThereIsNoKv) {
  DemoResult result = SampleResult();
  std::erase_if(result.ttft, [](const auto& row) { return row.kv; });
  result.kv_refusal = "layers with a recurrent state";
  EXPECT_THAT(DemoPage(result), HasSubstr("layers with a recurrent state"));
  EXPECT_THAT(DemoTtftTable(result).ToText(), HasSubstr("refused"));
  EXPECT_EQ(DemoJson(result)["kv_refused"], "layers with a recurrent state");
}

TEST(DemoJson, HasTheAgreedShape) {
  const nlohmann::ordered_json json = DemoJson(SampleResult());
  ASSERT_EQ(json["ttft"].size(), 4u);
  EXPECT_EQ(json["ttft"][3]["mode"], "kv");
  EXPECT_EQ(json["ttft"][3]["k"], 50);
  for (const char* name : {"ttft_ms", "injected_tokens", "computed_tokens"}) {
    EXPECT_TRUE(json["ttft"][3][name].is_number()) << name;
  }
  ASSERT_EQ(json["accuracy"].size(), 2u);
  EXPECT_EQ(json["accuracy"][1]["mode"], "kv");
  EXPECT_TRUE(json["accuracy"][1]["logprob"].is_number());
  EXPECT_TRUE(json["accuracy"][1]["top1"].is_number());
  EXPECT_NO_THROW(
      (void)json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

TEST(DemoPage, TakesAnEmptyResult) { EXPECT_THAT(DemoPage({}), HasSubstr("</html>")); }

Summary Row(std::int32_t k, const std::string& mode, const std::string& recipe, double diff) {
  Summary row;
  row.k = k;
  row.mode = mode;
  row.recipe = recipe;
  row.codec = recipe.empty() ? "" : "int4";
  row.n = 42;
  row.diff = diff;
  row.diff_interval = {diff - 0.05, diff + 0.05};
  row.ttft_ms = 100.0 * k;
  row.generated = true;
  row.f1 = 0.25;
  row.judged = row.judged_strict = 40;
  row.judge = 0.6;
  row.judge_strict = 0.4;
  return row;
}

EvalReport SampleReport() {
  EvalReport report;
  report.title = "<script>title</script>";
  report.settings = {{"model", "<img src=x>"}};
  for (const std::int32_t k : {5, 20}) {
    report.rows.push_back(Row(k, "none", "", -0.7));
    report.rows.push_back(Row(k, "text", "", 0));
    report.rows.push_back(Row(k, "kv", "primer", 0.031));
    report.rows.push_back(Row(k, "kv", "b<re", -0.412));
  }
  report.adversarial = {Row(5, "text", "", 0)};
  report.categories = {{"multi & <hop>", {Row(20, "kv", "primer", 0.077)}}};
  return report;
}

std::size_t Count(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) ++count;
  return count;
}

/// Every element that is opened is closed, in order; every attribute is quoted.
::testing::AssertionResult WellFormed(const std::string& html) {
  const std::set<std::string> empty = {"meta", "!DOCTYPE"};
  std::vector<std::string> open;
  for (std::size_t at = 0; (at = html.find('<', at)) != std::string::npos;) {
    const std::size_t end = html.find('>', at);
    if (end == std::string::npos) return ::testing::AssertionFailure() << "a tag has no end";
    const std::string tag = html.substr(at + 1, end - at - 1);
    at = end;
    if (tag.find('<') != std::string::npos)
      return ::testing::AssertionFailure() << "'<' inside <" << tag << ">";
    if (std::count(tag.begin(), tag.end(), '"') % 2 != 0)
      return ::testing::AssertionFailure() << "a quote is missing in <" << tag << ">";
    const std::string name = tag.substr(0, tag.find_first_of(" /", 1));
    if (name.starts_with("/")) {
      if (open.empty() || "/" + open.back() != name)
        return ::testing::AssertionFailure() << "<" << name << "> closes nothing";
      open.pop_back();
    } else if (!empty.contains(name) && !tag.ends_with("/")) {
      open.push_back(name);
    }
  }
  if (!open.empty()) return ::testing::AssertionFailure() << open.back() << " is not closed";
  return ::testing::AssertionSuccess();
}

TEST(EvalReportHtml, IsSelfContainedWellFormedAndEscaped) {
  const std::string page = EvalReportHtml(SampleReport());
  EXPECT_TRUE(WellFormed(page));
  EXPECT_TRUE(WellFormed(DemoPage(SampleResult())));
  EXPECT_FALSE(WellFormed("<p><b></p></b>"));
  EXPECT_THAT(page, AllOf(Not(HasSubstr("<script")), Not(HasSubstr("<img")), Not(HasSubstr("http")),
                          Not(HasSubstr("url(")), Not(HasSubstr("<hop"))));
  EXPECT_THAT(page, AllOf(HasSubstr("&lt;script&gt;title"), HasSubstr("&lt;img src=x&gt;"),
                          HasSubstr("multi &amp; &lt;hop&gt;"), HasSubstr("kv b&lt;re int4"),
                          HasSubstr("prefers-color-scheme: dark")));
}

TEST(EvalReportHtml, HasEveryRowAndPlot) {
  const std::string page = EvalReportHtml(SampleReport());
  EXPECT_EQ(Count(page, "<tr>"), 3u + 8u + 1u + 1u);
  for (const char* figure : {"+0.031", "-0.412", "+0.077", "0.250", "0.600", "0.400"})
    EXPECT_THAT(page, HasSubstr(figure));
  // Difference, F1, judge, TTFT and the categories.
  EXPECT_EQ(Count(page, "<svg"), 5u);
  EXPECT_THAT(page, AllOf(HasSubstr("kv primer int4, 5: 0.031 [-0.019, 0.081]"),
                          HasSubstr("class=\"kv-interval\""), HasSubstr("class=\"other1-line\""),
                          HasSubstr("<rect class=\"kv-dot\"")));
}

TEST(EvalReportHtml, LeavesOutWhatWasNotMeasured) {
  EvalReport report;
  report.rows = {Row(5, "text", "", 0)};
  report.rows[0].generated = false;
  report.rows[0].judged = 0;
  const std::string page = EvalReportHtml(report);
  EXPECT_TRUE(WellFormed(page));
  EXPECT_EQ(Count(page, "<svg"), 1u) << "TTFT alone";
  EXPECT_THAT(page, Not(HasSubstr("Token F1</h2>")));
  EXPECT_TRUE(WellFormed(EvalReportHtml({})));
}

TEST(LineChart, TakesValuesThatAreNoNumbers) {
  Chart chart;
  chart.series = {{"a", "kv", {{1, std::numeric_limits<double>::quiet_NaN(), {}}, {2, 3, {}}}},
                  {"b", "text", {}}};
  const std::string svg = LineChart(chart);
  EXPECT_TRUE(WellFormed(svg));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_EQ(LineChart({}), "");
}

}  // namespace
}  // namespace inferscale
