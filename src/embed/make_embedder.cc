#include "embed/make_embedder.h"

#include "embed/endpoint_embedder.h"
#include "embed/llama_embedder.h"

namespace inferscale {

Result<std::unique_ptr<Embedder>> MakeEmbedder(const EmbedderSpec& spec) {
  if (spec.location.empty()) {
    return InvalidArgument(
        "no embedder is set: give the path of a GGUF embedding model, or the http(s) URL of an "
        "OpenAI-compatible server");
  }
  if (spec.location.starts_with("http://") || spec.location.starts_with("https://")) {
    INFERSCALE_ASSIGN_OR_RETURN(std::unique_ptr<Embedder> embedder, EndpointEmbedder::Create(spec));
    return embedder;
  }
  if (spec.location.find("://") != std::string::npos) {
    return InvalidArgument("the embedder's URL has to start with http:// or https://");
  }
  INFERSCALE_ASSIGN_OR_RETURN(std::unique_ptr<Embedder> embedder, LlamaEmbedder::Load(spec));
  return embedder;
}

}  // namespace inferscale
