#ifndef INFERSCALE_TESTS_SUPPORT_FAKE_EMBEDDER_H_
#define INFERSCALE_TESTS_SUPPORT_FAKE_EMBEDDER_H_

#include <atomic>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "inferscale/embedder.h"

namespace inferscale::testing {

/// Vectors that depend on nothing but the text: a text of two or more equal words is near another
/// one that shares words with it, because each word adds its own pseudo-random direction.
class FakeEmbedder : public Embedder {
 public:
  explicit FakeEmbedder(std::int32_t dimensions = 32, std::string id = "fake")
      : dimensions_(dimensions), id_(std::move(id)) {}

  Result<std::vector<std::vector<float>>> Embed(std::span<const std::string> texts) override {
    if (fail) return Unavailable("the fake embedder was told to fail");
    std::vector<std::vector<float>> vectors;
    for (const std::string& text : texts) vectors.push_back(EmbedOne(text));
    return vectors;
  }
  std::int32_t dimensions() const override { return dimensions_; }
  const std::string& id() const override { return id_; }

  std::vector<float> EmbedOne(const std::string& text) const {
    std::vector<float> vector(static_cast<std::size_t>(dimensions_), 0.0f);
    std::uint64_t hash = kOffset;
    bool in_word = false;
    for (std::size_t i = 0; i <= text.size(); ++i) {
      if (i < text.size() && text[i] != ' ') {
        hash = (hash ^ static_cast<unsigned char>(text[i])) * 0x100000001b3;
        in_word = true;
        continue;
      }
      if (in_word) AddWord(hash, vector);
      hash = kOffset;
      in_word = false;
    }
    double squares = 0;
    for (const float x : vector) squares += static_cast<double>(x) * x;
    if (squares > 0) {
      for (float& x : vector) x = static_cast<float>(x / std::sqrt(squares));
    }
    return vector;
  }

  std::atomic<bool> fail{false};

 private:
  static constexpr std::uint64_t kOffset = 0xcbf29ce484222325;

  void AddWord(std::uint64_t hash, std::vector<float>& vector) const {
    for (float& x : vector) {
      hash = hash * 6364136223846793005 + 1442695040888963407;
      x += static_cast<float>(static_cast<double>(hash >> 33) / (1u << 30) - 1.0);
    }
  }

  std::int32_t dimensions_;
  std::string id_;
};

}  // namespace inferscale::testing

#endif  // INFERSCALE_TESTS_SUPPORT_FAKE_EMBEDDER_H_
