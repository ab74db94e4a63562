#ifndef INFERSCALE_EMBED_ENDPOINT_EMBEDDER_H_
#define INFERSCALE_EMBED_ENDPOINT_EMBEDDER_H_

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/http_client.h"
#include "embed/make_embedder.h"
#include "inferscale/embedder.h"

namespace inferscale {

/// Vectors from an OpenAI-compatible server. What it answers is checked: one finite vector of the
/// known dimensions for each text. Server errors and timeouts are tried once more. Thread-safe:
/// every call has its own connections.
class EndpointEmbedder : public Embedder {
 public:
  static Result<std::unique_ptr<EndpointEmbedder>> Create(const EmbedderSpec& spec);

  Result<std::vector<std::vector<float>>> Embed(std::span<const std::string> texts) override;
  std::int32_t dimensions() const override { return dimensions_; }
  const std::string& id() const override { return id_; }

 private:
  EndpointEmbedder() = default;

  Result<std::vector<std::vector<float>>> EmbedBatch(std::span<const std::string> texts) const;
  Result<HttpPostResult> PostWithRetry(const std::string& body) const;

  Url url_;
  std::string model_;
  std::string api_key_;
  std::chrono::milliseconds timeout_{};
  std::int32_t dimensions_ = 0;
  std::string id_;
};

}  // namespace inferscale

#endif  // INFERSCALE_EMBED_ENDPOINT_EMBEDDER_H_
