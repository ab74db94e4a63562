#include "embed/endpoint_embedder.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/hash.h"
#include "base/utf8.h"
#include "embed/vectors.h"

namespace inferscale {
namespace {

using nlohmann::json;

/// The default limit of the strictest common server (text-embeddings-inference).
constexpr std::size_t kBatchTexts = 32;
/// A token takes at least one byte, so this stays inside the 8,192 tokens that common models allow.
constexpr std::size_t kMaxTextBytes = 8000;
constexpr std::int32_t kMaxDimensions = 16384;
/// Digits, sign, exponent and comma of one number as JSON, with room to spare.
constexpr std::size_t kBytesPerNumber = 40;

std::string StripSlashes(std::string text) {
  while (!text.empty() && text.back() == '/') text.pop_back();
  return text;
}

Status BadAnswer(const Url& url, const std::string& what) {
  return Unavailable(url.ToDisplayString() + " gave no usable embeddings: " + what +
                     "; check that it is an OpenAI-compatible /v1/embeddings endpoint");
}

/// The numbers of one item of "data", or what is wrong with them.
Result<std::vector<float>> ReadVector(const Url& url, const json& item, std::int32_t dimensions) {
  const auto found = item.find("embedding");
  if (found == item.end() || !found->is_array()) {
    return BadAnswer(url, "an item has no array \"embedding\"");
  }
  const std::size_t size = found->size();
  if (size == 0 || size > static_cast<std::size_t>(kMaxDimensions) ||
      (dimensions > 0 && size != static_cast<std::size_t>(dimensions))) {
    return BadAnswer(url, "an embedding has " + std::to_string(size) + " dimensions" +
                              (dimensions > 0 ? " instead of " + std::to_string(dimensions) : ""));
  }
  std::vector<float> vector;
  vector.reserve(size);
  for (const json& number : *found) {
    if (!number.is_number())
      return BadAnswer(url, "an embedding holds something else than numbers");
    vector.push_back(static_cast<float>(number.get<double>()));
  }
  if (!Normalize(vector)) return BadAnswer(url, "an embedding holds a number that is not finite");
  return vector;
}

Result<std::vector<std::vector<float>>> ReadAnswer(const Url& url, const HttpPostResult& response,
                                                   std::size_t texts, std::int32_t dimensions) {
  const json answer = json::parse(response.body, nullptr, /*allow_exceptions=*/false);
  if (answer.is_discarded()) {
    return BadAnswer(url,
                     "the answer is not JSON but begins " + ExcerptForMessage(response.body, 80));
  }
  if (!answer.is_object() || !answer.contains("data") || !answer["data"].is_array()) {
    return BadAnswer(url, "the answer has no array \"data\"");
  }
  const json& data = answer["data"];
  if (data.size() != texts) {
    return BadAnswer(
        url, std::to_string(data.size()) + " vectors for " + std::to_string(texts) + " texts");
  }
  std::vector<std::vector<float>> vectors(texts);
  for (const json& item : data) {
    if (!item.is_object()) return BadAnswer(url, "an item of \"data\" is not an object");
    const auto index = item.find("index");
    if (index == item.end() || !index->is_number_unsigned() ||
        index->get<std::uint64_t>() >= texts || !vectors[index->get<std::uint64_t>()].empty()) {
      return BadAnswer(url, "an item's \"index\" is missing, repeated or out of range");
    }
    INFERSCALE_ASSIGN_OR_RETURN(std::vector<float> vector, ReadVector(url, item, dimensions));
    if (dimensions == 0) dimensions = static_cast<std::int32_t>(vector.size());
    vectors[index->get<std::uint64_t>()] = std::move(vector);
  }
  return vectors;
}

}  // namespace

Result<std::unique_ptr<EndpointEmbedder>> EndpointEmbedder::Create(const EmbedderSpec& spec) {
  INFERSCALE_ASSIGN_OR_RETURN(Url url, ParseUrl(spec.location));
  if (spec.model.empty()) {
    return InvalidArgument("no model is named for the embedding endpoint " + url.ToDisplayString() +
                           "; set the embedder's model");
  }
  if (spec.dimensions < 0 || spec.dimensions > kMaxDimensions) {
    return InvalidArgument("the embedder's dimensions have to be between 1 and " +
                           std::to_string(kMaxDimensions) + ", or 0 to ask the endpoint");
  }
  const std::size_t query = url.target.find('?');
  const std::string suffix = query == std::string::npos ? "" : url.target.substr(query);
  std::string path = StripSlashes(url.target.substr(0, query));
  if (!path.ends_with("/embeddings")) path += path.empty() ? "/v1/embeddings" : "/embeddings";
  url.target = path + suffix;

  std::unique_ptr<EndpointEmbedder> embedder(new EndpointEmbedder());
  embedder->url_ = url;
  embedder->model_ = spec.model;
  embedder->api_key_ = spec.api_key;
  embedder->timeout_ = spec.timeout;
  embedder->dimensions_ = spec.dimensions;
  if (spec.dimensions == 0) {
    const std::string probe = "How many dimensions?";
    INFERSCALE_ASSIGN_OR_RETURN(auto vectors, embedder->EmbedBatch({&probe, 1}));
    embedder->dimensions_ = static_cast<std::int32_t>(vectors[0].size());
  }
  embedder->id_ = HexEncode(Sha256("endpoint\n" + url.ToDisplayString() + "\n" + spec.model + "\n" +
                                   std::to_string(embedder->dimensions_)));
  return embedder;
}

Result<std::vector<std::vector<float>>> EndpointEmbedder::Embed(
    std::span<const std::string> texts) {
  std::vector<std::vector<float>> vectors(
      texts.size(), std::vector<float>(static_cast<std::size_t>(dimensions_), 0.0f));
  // Servers refuse empty inputs, so blank texts are answered here.
  std::vector<std::size_t> places;
  std::vector<std::string> batch;
  const auto flush = [&]() -> Status {
    if (batch.empty()) return OkStatus();
    INFERSCALE_ASSIGN_OR_RETURN(auto answer, EmbedBatch(batch));
    for (std::size_t i = 0; i < places.size(); ++i) vectors[places[i]] = std::move(answer[i]);
    places.clear();
    batch.clear();
    return OkStatus();
  };
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (TrimWhitespace(texts[i]).empty()) continue;
    places.push_back(i);
    batch.emplace_back(TruncateUtf8(texts[i], kMaxTextBytes));
    if (batch.size() == kBatchTexts) INFERSCALE_RETURN_IF_ERROR(flush());
  }
  INFERSCALE_RETURN_IF_ERROR(flush());
  return vectors;
}

Result<std::vector<std::vector<float>>> EndpointEmbedder::EmbedBatch(
    std::span<const std::string> texts) const {
  const json request = {{"model", model_},
                        {"input", std::vector<std::string>(texts.begin(), texts.end())}};
  INFERSCALE_ASSIGN_OR_RETURN(
      HttpPostResult response,
      PostWithRetry(request.dump(-1, ' ', false, json::error_handler_t::replace)));
  if (response.status != 200) return RefusalStatus(url_, response);
  return ReadAnswer(url_, response, texts.size(), dimensions_);
}

Result<HttpPostResult> EndpointEmbedder::PostWithRetry(const std::string& body) const {
  HttpPost post;
  post.url = url_;
  post.body = body;
  post.bearer_token = api_key_;
  post.timeout = timeout_;
  const std::int32_t most = dimensions_ > 0 ? dimensions_ : kMaxDimensions;
  post.max_response_bytes =
      (std::size_t{1} << 20) + kBatchTexts * static_cast<std::size_t>(most) * kBytesPerNumber;
  Result<HttpPostResult> response = PostJson(post);
  const bool again = response.ok() ? response->status >= 500
                                   : response.status().code() == StatusCode::kUnavailable;
  return again ? PostJson(post) : response;
}

}  // namespace inferscale
