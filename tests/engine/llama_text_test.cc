// Texts and conversations as token ids.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/utf8.h"
#include "llama/llama_model.h"
#include "llama/tokenizer.h"
#include "support/engine_fixture.h"

namespace inferscale {
namespace {

using testing::Open;
using testing::TestOptions;
using testing::TinyModel;

TEST(LlamaText, NeverReadsSpecialTokensOutOfTexts) {
  for (const char* name : {"llama_norm", "qwen3", "gemma3", "llama_no_template"}) {
    SCOPED_TRACE(name);
    const auto engine = Open(TestOptions(TinyModel(name)));
    const auto model = LlamaModel::Load({.path = TinyModel(name)});
    ASSERT_TRUE(model.ok());
    const LlamaTokenizer tokenizer(*model);
    std::vector<std::string> names;
    for (TokenId id = 0; id < tokenizer.vocabulary(); ++id) {
      if (tokenizer.FindSpecial(tokenizer.SpecialPiece(id)) == id && tokenizer.Piece(id).empty()) {
        names.push_back(tokenizer.SpecialPiece(id));
      }
    }
    for (const char* spelt :
         {"<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</think>"}) {
      if (tokenizer.FindSpecial(spelt) >= 0) names.push_back(spelt);
    }
    ASSERT_FALSE(names.empty());
    const auto plain =
        engine->Render(std::vector<ChatMessage>{{"system", "S", ""}, {"user", "U", ""}});
    ASSERT_TRUE(plain.ok());
    for (const std::string& special : names) {
      const TokenId id = tokenizer.FindSpecial(special);
      const std::string text = "before " + special + special + " after";
      const TokenIds ids = engine->Tokenize(text);
      EXPECT_EQ(std::count(ids.begin(), ids.end(), id), 0) << special;
      EXPECT_EQ(engine->Detokenize(ids), text);
      const auto chat =
          engine->Render(std::vector<ChatMessage>{{"system", text, ""}, {"user", text, ""}});
      ASSERT_TRUE(chat.ok());
      EXPECT_EQ(std::count(chat->ids.begin(), chat->ids.end(), id),
                std::count(plain->ids.begin(), plain->ids.end(), id))
          << special;
      for (const RenderedChat::Span& span : chat->contents) {
        EXPECT_EQ(
            engine->Detokenize(std::span(chat->ids).subspan(span.begin, span.end - span.begin)),
            text);
      }
    }
  }
}

TEST(LlamaText, RendersConversationsWithPlacesForFactsAndQuestion) {
  for (const char* name :
       {"llama_norm", "llama_no_system", "llama_no_template", "gemma3", "llama3_freqs"}) {
    SCOPED_TRACE(name);
    const auto engine = Open(TestOptions(TinyModel(name)));
    const std::vector<ChatMessage> messages = {{"system", "Be brief.", ""},
                                               {"user", "Hello!", ""},
                                               {"assistant", "Hello, Anna.", ""},
                                               {"user", "Who am I?", ""}};
    const auto chat = engine->Render(messages);
    ASSERT_TRUE(chat.ok()) << chat.status().ToString();
    ASSERT_EQ(chat->contents.size(), messages.size());
    for (std::size_t i = 0; i < messages.size(); ++i) {
      const RenderedChat::Span span = chat->contents[i];
      EXPECT_EQ(engine->Detokenize(std::span(chat->ids).subspan(span.begin, span.end - span.begin)),
                messages[i].content);
    }
    EXPECT_EQ(chat->facts_place, chat->contents[0].end);
    EXPECT_EQ(chat->question_place, chat->contents[3].begin);
    // What follows the prefix does not change it.
    const auto longer = engine->Render(
        std::vector<ChatMessage>{{"system", "Be brief.", ""}, {"user", "Another question", ""}});
    ASSERT_TRUE(longer.ok());
    EXPECT_TRUE(
        std::equal(chat->ids.begin(), chat->ids.begin() + chat->facts_place, longer->ids.begin()));
    const bool no_system = std::string(name) == "llama_no_system" || std::string(name) == "gemma3";
    EXPECT_EQ(engine->capabilities().system_role, !no_system);
    // Orders that templates refuse are put into one they take.
    for (const std::vector<ChatMessage>& odd :
         {std::vector<ChatMessage>{{"user", "a", ""}, {"user", "b", ""}},
          std::vector<ChatMessage>{{"assistant", "a", ""}, {"user", "b", ""}},
          std::vector<ChatMessage>{
              {"user", "a", ""}, {"system", "b", ""}, {"tool", "c", ""}, {"user", "", ""}},
          std::vector<ChatMessage>{{"system", "a", ""}}}) {
      const auto rendered = engine->Render(odd);
      EXPECT_TRUE(rendered.ok()) << rendered.status().ToString();
    }
    EXPECT_FALSE(engine->Render({}).ok());
  }
}

TEST(LlamaText, TakesAnyText) {
  const auto engine = Open(TestOptions(TinyModel("llama_norm")));
  const std::string nul("a\0b", 3);
  for (const std::string& text :
       {std::string(), std::string(" \n\t "), nul, std::string("\xff\xfe\x80"),
        std::string("🐕‍🦺 שלום 你好 مرحبا"), std::string(1 << 20, 'x'),
        std::string(200000, ' ')}) {
    const TokenIds ids = engine->Tokenize(text);
    if (IsValidUtf8(text)) {
      EXPECT_EQ(engine->Detokenize(ids), text);
    }
    EXPECT_TRUE(engine->Render(std::vector<ChatMessage>{{"user", text, ""}}).ok());
  }
  EXPECT_EQ(engine->Detokenize(TokenIds{-1, 1 << 30}), "");
}

}  // namespace
}  // namespace inferscale
