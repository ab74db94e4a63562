#include "base/utf8.h"

#include <gtest/gtest.h>

#include <random>

namespace inferscale {
namespace {

TEST(Utf8, KnowsWhatIsValid) {
  for (const char* good : {"", "abc", "\xC3\xA9", "\xE4\xB8\xAD\xE6\x96\x87", "\xF0\x9F\x98\x80"}) {
    EXPECT_TRUE(IsValidUtf8(good)) << good;
    EXPECT_EQ(ToValidUtf8(good), good);
  }
  EXPECT_TRUE(IsValidUtf8(std::string_view("a\0b", 3)));
  for (const char* bad : {"\x80", "\xC3", "\xC0\xAF", "\xE4\xB8", "\xED\xA0\x80",
                          "\xF5\x80\x80\x80", "\xF0\x80\x80\x80",
                          "a\xFF"
                          "b",
                          "\xF4\x90\x80\x80"}) {
    EXPECT_FALSE(IsValidUtf8(bad));
    EXPECT_TRUE(IsValidUtf8(ToValidUtf8(bad)));
  }
  EXPECT_EQ(ToValidUtf8("a\xFF"
                        "b"),
            "a\xEF\xBF\xBD"
            "b");
}

TEST(Utf8, ComposesAndFolds) {
  EXPECT_EQ(Nfc("e\xCC\x81"), "\xC3\xA9");
  EXPECT_EQ(CaseFold("STRASSE"), CaseFold("stra\xC3\x9F"
                                          "e"));
  EXPECT_EQ(Nfc(std::string_view("a\0b", 3)), std::string("a\0b", 3));
  EXPECT_EQ(Nfc(""), "");
}

TEST(Utf8, TrimsUnicodeWhiteSpaceAlone) {
  EXPECT_EQ(TrimWhitespace(" \t\n\xE3\x80\x80 a b\xC2\xA0\xE2\x80\x83\r\n"), "a b");
  EXPECT_EQ(TrimWhitespace("\xE3\x80\x80"), "");
  EXPECT_EQ(TrimWhitespace(""), "");
  EXPECT_EQ(TrimWhitespace("\x80 \x80"), "\x80 \x80");
  EXPECT_EQ(TrimWhitespace("\xE4\xB8\xAD "), "\xE4\xB8\xAD");
}

TEST(Utf8, EqualityIgnoresCompositionCaseAndEnds) {
  EXPECT_EQ(NormalizeForEquality("  Cafe\xCC\x81 "), NormalizeForEquality("CAF\xC3\x89"));
  EXPECT_NE(NormalizeForEquality("a b"), NormalizeForEquality("ab"));
  for (const char* text : {"\xC4\xB0stanbul", "\xCE\x91\xCD\x85\xCC\x81", "\xEF\xAC\x81"}) {
    EXPECT_EQ(NormalizeForEquality(NormalizeForEquality(text)), NormalizeForEquality(text)) << text;
  }
}

TEST(Utf8, CutsBetweenCharacters) {
  const std::string text = "a\xC3\xA9\xE4\xB8\xAD\xF0\x9F\x98\x80";
  for (std::size_t size = 0; size <= text.size() + 1; ++size) {
    const std::string_view cut = TruncateUtf8(text, size);
    EXPECT_LE(cut.size(), size);
    EXPECT_TRUE(IsValidUtf8(cut)) << size;
    EXPECT_EQ(text.substr(0, cut.size()), cut);
    EXPECT_GT(cut.size() + 4, std::min(size, text.size()));
  }
  EXPECT_EQ(TruncateUtf8(std::string(10, '\x80'), 5).size(), 5u);
}

TEST(Utf8, SurvivesAnyBytes) {
  std::mt19937 random(5);
  for (int round = 0; round < 2000; ++round) {
    std::string text(random() % 40, 0);
    for (char& c : text) c = static_cast<char>(random());
    EXPECT_TRUE(IsValidUtf8(ToValidUtf8(text)));
    EXPECT_TRUE(IsValidUtf8(NormalizeForEquality(text)));
    TrimWhitespace(text);
    TruncateUtf8(text, random() % 40);
  }
}

// Sorting such a run takes quadratic time: unbounded, this test would not end.
TEST(Utf8, BoundsTheWorkOfCombiningMarks) {
  std::string text = "a";
  for (int i = 0; i < 200'000; ++i) text += i % 2 == 0 ? "\xCC\x81" : "\xCC\xA3";
  EXPECT_TRUE(IsValidUtf8(NormalizeForEquality(text)));
}

}  // namespace
}  // namespace inferscale
