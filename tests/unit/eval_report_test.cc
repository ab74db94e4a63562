#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "eval/demo_result.h"
#include "eval/eval_report.h"
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

}  // namespace
}  // namespace inferscale
