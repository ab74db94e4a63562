#include "engine/llama/text_stream.h"

#include <gtest/gtest.h>

#include "base/utf8.h"

namespace inferscale {
namespace {

/// Pushes the bytes one by one; every part must be whole characters.
std::string ByteByByte(TextStream& stream, std::string_view bytes) {
  std::string all;
  for (const char byte : bytes) {
    const std::string part = stream.Push({&byte, 1});
    EXPECT_TRUE(IsValidUtf8(part));
    all += part;
  }
  return all;
}

TEST(TextStream, ReleasesWholeCharactersOnly) {
  TextStream stream({});
  EXPECT_EQ(stream.Push("\xe4\xbd"), "");
  EXPECT_EQ(stream.Push("\xa0 h"), "你 h");
  const std::string text = "né 你好 🐕‍🦺 ok";
  TextStream bytes({});
  EXPECT_EQ(ByteByByte(bytes, text) + bytes.Finish(), text);
  EXPECT_EQ(bytes.text(), text);
}

TEST(TextStream, ReplacesWhatIsNoCharacter) {
  TextStream stream({});
  EXPECT_EQ(stream.Push("a\xff"
                        "b"),
            "a\xef\xbf\xbd"
            "b");
  EXPECT_EQ(stream.Push("\xf0\x9f"), "");
  EXPECT_TRUE(IsValidUtf8(stream.Finish()));
  EXPECT_EQ(stream.Finish(), "");
}

TEST(TextStream, EndsBeforeAStopString) {
  TextStream stream({"END", "</s>"});
  EXPECT_EQ(stream.Push("one E"), "one ");
  EXPECT_EQ(stream.Push("N"), "");
  EXPECT_EQ(stream.Push("ough"), "ENough");
  EXPECT_EQ(stream.Push(" two</s"), " two");
  EXPECT_FALSE(stream.stopped());
  EXPECT_EQ(stream.Push("> three"), "");
  EXPECT_TRUE(stream.stopped());
  EXPECT_EQ(stream.Finish(), "");
  EXPECT_EQ(stream.Push("more"), "");
  EXPECT_EQ(stream.text(), "one ENough two");
}

TEST(TextStream, TakesTheEarliestOfSeveralStops) {
  TextStream stream({"second", "first"});
  EXPECT_EQ(stream.Push("then first and second"), "then ");
  EXPECT_TRUE(stream.stopped());
}

TEST(TextStream, GivesBackWhatItHeldInVain) {
  TextStream stream({"abcabcabd"});
  std::string all = ByteByByte(stream, "abcabcabcab");
  all += stream.Finish();
  EXPECT_EQ(all, "abcabcabcab");
  EXPECT_FALSE(stream.stopped());
  TextStream again({"abcabcabd"});
  EXPECT_EQ(ByteByByte(again, "xabcabcabcabdz"), "xabc");
  EXPECT_TRUE(again.stopped());
}

TEST(TextStream, IgnoresEmptyStops) {
  TextStream stream({"", ""});
  EXPECT_EQ(stream.Push("text"), "text");
  EXPECT_FALSE(stream.stopped());
}

}  // namespace
}  // namespace inferscale
