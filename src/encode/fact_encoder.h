#ifndef INFERSCALE_ENCODE_FACT_ENCODER_H_
#define INFERSCALE_ENCODE_FACT_ENCODER_H_

/// \file fact_encoder.h
/// FactEncoder: from a fact to the encode request of its KV block, and to the key it is found by.
/// Thread-safe.

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "encode/recipe.h"
#include "inferscale/catalog.h"
#include "inferscale/engine.h"

namespace inferscale {

/// What a fact is encoded behind, and its own tokens.
struct FactEncoding {
  std::shared_ptr<const TokenIds> context;
  TokenIds own;
  std::vector<std::string> saw;  ///< ids of facts, "turn:ID" of turns
  KvKey key;
};

class FactEncoder {
 public:
  /// For what the engine is now: when that changes another encoder is needed. The catalog is read
  /// for windows and owner's primers. Both must outlive the encoder.
  FactEncoder(Engine& engine, Catalog& catalog, Recipe recipe, KvCodec codec);

  const Recipe& recipe() const { return recipe_; }
  KvCodec codec() const { return codec_; }
  const Fingerprint& fingerprint() const { return fingerprint_; }
  /// Names one encoding (model × recipe × codec) in the catalog.
  const std::string& encoding_id() const { return encoding_id_; }

  /// \param scope the fact's own scope.
  Result<FactEncoding> Encode(const Fact& fact, const ScopeInfo& scope);

  /// Where facts are encoded behind facts of their owner and there are enough of them by now: puts
  /// what was encoded before that back on the encode queue. What saw a fact that is gone is there
  /// already.
  Status RequeueThinPrimers(const ScopeInfo& scope);

  /// Ids of the served line of a fact; remembered, because a fact is served again and again.
  TokenIds ServedIds(const Fact& fact, const ScopeInfo& scope);

  /// Key of an exact prefix: shared by all scopes of a tenant, exact for everybody.
  Result<KvKey> PrefixKey(const std::string& tenant, std::span<const TokenId> ids);

 private:
  Result<std::shared_ptr<const TokenIds>> Context(const Fact& fact, const ScopeInfo& scope,
                                                  std::vector<std::string>* saw);
  /// Behind these facts of the same owner, `fact` itself left out.
  std::shared_ptr<const TokenIds> OwnContext(const TokenIds& opening,
                                             std::span<const Fact> examples, const Fact& fact,
                                             const ScopeInfo& scope, std::vector<std::string>* saw);
  /// Appends the turns before the fact, as dated bullets or as plain turns.
  Status AppendWindow(const Fact& fact, const ScopeInfo& scope, bool bullets, TokenIds* context,
                      std::vector<std::string>* saw);
  /// The nearest other speaker around the fact's turns, or empty.
  Result<std::string> Partner(const Fact& fact, const std::string& subject,
                              std::vector<std::string>* saw);
  Result<std::shared_ptr<const TokenIds>> Opening();
  std::shared_ptr<const TokenIds> PrimerContext(const TokenIds& opening, const std::string& lines);
  Result<std::vector<std::uint8_t>> Secret(const std::string& tenant);

  Engine& engine_;
  Catalog& catalog_;
  const Recipe recipe_;
  const KvCodec codec_;
  const Fingerprint fingerprint_;
  std::string encoding_id_;
  std::mutex mutex_;
  std::shared_ptr<const TokenIds> opening_;
  std::map<std::string, std::shared_ptr<const TokenIds>> primer_contexts_;  // by primer text
  std::map<std::string, std::vector<std::uint8_t>> secrets_;                // by tenant
  std::unordered_map<std::string, TokenIds> served_;                        // by served line
  std::size_t served_bytes_ = 0;
};

/// Canonical text of a scope, as hashed into keys and tags: no two scopes share it.
std::string ScopeText(const Scope& scope);

}  // namespace inferscale

#endif  // INFERSCALE_ENCODE_FACT_ENCODER_H_
