#include "encode/recipe.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace inferscale {
namespace {

Fact MakeFact(std::string text, std::string name = "Ada", TimeMs time = 1'683'417'600'000) {
  Fact fact;
  fact.text = std::move(text);
  fact.name = std::move(name);
  fact.event_time_ms = time;
  return fact;
}

TEST(RecipeTest, NamesRoundTrip) {
  for (const char* name :
       {"bare", "header", "primer", "primer:3", "owner-primer", "owner-primer:30", "window:0",
        "window:50", "header-window:5", "window-primer:5", "turn-primer", "turn-primer:4",
        "both-primer", "both-primer:6"}) {
    const Result<Recipe> recipe = Recipe::Parse(name);
    ASSERT_TRUE(recipe.ok()) << name << ": " << recipe.status().ToString();
    EXPECT_EQ(recipe->Name(), name);
  }
}

TEST(RecipeTest, BadNamesAreErrorsThatSayWhatIsAllowed) {
  for (const char* name : {"", "Primer", "window:", "window:-1", "window:201", "window:5x",
                           "bare:1", "primer:999", "window:99999999999999999999"}) {
    const Result<Recipe> recipe = Recipe::Parse(name);
    ASSERT_FALSE(recipe.ok()) << name;
    EXPECT_EQ(recipe.status().code(), StatusCode::kInvalidArgument);
  }
}

TEST(ServedLineTest, HoldsDateNameAndText) {
  EXPECT_EQ(ServedLine(MakeFact("has a cat"), ""), "- (7 May 2023) Ada: has a cat\n");
}

TEST(ServedLineTest, FallsBackToTheScopesNameAndThenToNoSubject) {
  EXPECT_EQ(ServedLine(MakeFact("has a cat", "", 0), "Bob"), "- Bob: has a cat\n");
  EXPECT_EQ(ServedLine(MakeFact("has a cat", " \t", 0), "\n"), "- has a cat\n");
  EXPECT_EQ(ServedLine(MakeFact("Anna has: a cat", ""), ""), "- (7 May 2023) Anna has: a cat\n");
  EXPECT_EQ(ServedName(MakeFact("has a cat", " "), " "), "");
}

TEST(ServedLineTest, IsOneLineWhateverTheTextHolds) {
  for (const char* text : {"a\nb", "a\r\n\r\nb",
                           "a\xE2\x80\xA8"
                           "b",
                           "a\xE2\x80\xA9"
                           "b",
                           "a\xC2\x85"
                           "b",
                           "\na\tb\n"}) {
    EXPECT_EQ(ServedLine(MakeFact(text, "x", 0), ""), "- x: a b\n") << text;
  }
  EXPECT_EQ(ServedLine(MakeFact(std::string("a\0b", 3), "n\nm", 0), ""), "- n m: a b\n");
  EXPECT_EQ(ServedLine(MakeFact("- a bullet\n- another", "x", 0), ""),
            "- x: - a bullet - another\n");
}

TEST(ServedLineTest, KeepsOtherUnicode) {
  EXPECT_EQ(ServedLine(MakeFact("养了一只猫 🐱 مرحبا", "小明", 0), ""),
            "- 小明: 养了一只猫 🐱 مرحبا\n");
}

TEST(ServedDateTest, CoversBothSidesOfTheEpoch) {
  EXPECT_EQ(ServedDate(0), "1 January 1970");
  EXPECT_EQ(ServedDate(-1), "31 December 1969");
  EXPECT_EQ(ServedDate(1'709'164'800'000), "29 February 2024");
}

TEST(PrimerTest, PutsTheNamesIn) {
  const std::string names[] = {"Ada"};
  const std::string lines = PrimerLines(10, names);
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 10);
  EXPECT_EQ(lines.find('{'), std::string::npos);
  EXPECT_EQ(lines.find("The user"), std::string::npos);
  EXPECT_NE(lines.find(") Ada: "), std::string::npos);
}

TEST(PrimerTest, HasNoSubjectsWithoutNames) {
  const std::string nobody[] = {""};
  const std::string lines = PrimerLines(10, {});
  EXPECT_EQ(PrimerLines(10, nobody), lines);
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 10);
  EXPECT_TRUE(lines.starts_with("- (2 March 2024) has a dog ")) << lines;
  EXPECT_EQ(lines.find(':'), std::string::npos);
  EXPECT_EQ(lines.find('{'), std::string::npos);
  EXPECT_NE(lines.find("told a friend about"), std::string::npos);
  // Written as such facts are served.
  const PrimerFact& first = GenericPrimer().front();
  EXPECT_TRUE(lines.starts_with("- (" + std::string(first.date) + ") " + std::string(first.text)));
}

TEST(PrimerTest, ASubjectWithoutANameKeepsItsPartners) {
  const std::string names[] = {"", "Bob"};
  const std::string lines = PrimerLines(10, names);
  EXPECT_NE(lines.find(") has a dog"), std::string::npos);
  EXPECT_NE(lines.find(") Bob: works in"), std::string::npos);
  EXPECT_NE(lines.find(") told Bob about"), std::string::npos);
  EXPECT_NE(lines.find("as a friend had suggested"), std::string::npos);
}

TEST(PrimerTest, TurnsAreServedLikeFacts) {
  const std::string names[] = {"Ada"};
  const std::string lines = PrimerLines(10, names, GenericTurnPrimer());
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 10);
  EXPECT_TRUE(lines.starts_with("- (2 March 2024) Ada: ")) << lines;
  EXPECT_EQ(lines.find('{'), std::string::npos);
  EXPECT_TRUE(lines.starts_with(PrimerLines(3, names, GenericTurnPrimer())));
}

TEST(PrimerTest, ShorterListsArePrefixes) {
  const std::string names[] = {"Ada", "Bob"};
  EXPECT_TRUE(PrimerLines(10, names).starts_with(PrimerLines(4, names)));
  EXPECT_EQ(PrimerLines(0, names), "");
  EXPECT_GE(GenericPrimer().size(), 10u);
}

}  // namespace
}  // namespace inferscale
