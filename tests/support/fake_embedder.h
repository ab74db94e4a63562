#ifndef INFERSCALE_TESTS_SUPPORT_FAKE_EMBEDDER_H_
#define INFERSCALE_TESTS_SUPPORT_FAKE_EMBEDDER_H_

#include <atomic>
#include <cmath>
#include <functional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "inferscale/embedder.h"

namespace inferscale::testing {

/// Bags of words hashed into a few dimensions: texts that share words are near each other.
class FakeEmbedder : public Embedder {
 public:
  explicit FakeEmbedder(std::string id = "fake") : id_(std::move(id)) {}

  Result<std::vector<std::vector<float>>> Embed(std::span<const std::string> texts) override {
    if (fail) return Unavailable("the fake embedder was told to fail");
    std::vector<std::vector<float>> vectors;
    for (const std::string& text : texts) {
      std::vector<float> vector(static_cast<std::size_t>(dimensions()), 0.0F);
      std::istringstream words(text);
      for (std::string word; words >> word;) {
        vector[std::hash<std::string>()(word) % vector.size()] += 1.0F;
      }
      double norm = 0;
      for (const float value : vector) norm += value * value;
      if (norm > 0) {
        for (float& value : vector) value /= static_cast<float>(std::sqrt(norm));
      }
      vectors.push_back(std::move(vector));
    }
    return vectors;
  }
  std::int32_t dimensions() const override { return 64; }
  const std::string& id() const override { return id_; }

  std::atomic<bool> fail{false};

 private:
  std::string id_;
};

}  // namespace inferscale::testing

#endif  // INFERSCALE_TESTS_SUPPORT_FAKE_EMBEDDER_H_
