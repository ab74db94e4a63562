#ifndef INFERSCALE_CATALOG_VALIDATION_H_
#define INFERSCALE_CATALOG_VALIDATION_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "inferscale/catalog.h"
#include "inferscale/result.h"

namespace inferscale::catalog {

/// Largest text of any one field, in bytes.
inline constexpr std::size_t kMaxTextBytes = std::size_t{16} << 20;

/// kInvalidArgument, naming the field, unless `text` is UTF-8 of an acceptable size.
Status CheckText(std::string_view field, std::string_view text);
/// The same, and it must hold more than blanks.
Status CheckFactText(std::string_view text);
/// A date "YYYY-MM-DD" or empty.
Status CheckExpirationDate(std::string_view date);
/// A JSON object in its one stored form. kInvalidArgument otherwise.
Result<std::string> NormalizeJsonObject(std::string_view field, std::string_view json);
Status CheckScope(const Scope& scope);
/// Everything about a batch that can be told without the database.
Status CheckBatch(const IngestBatch& batch);
/// f16 of an embedding. kInvalidArgument for a number that f16 cannot hold.
Result<std::vector<std::uint8_t>> EncodeEmbedding(std::span<const float> vector);

}  // namespace inferscale::catalog

#endif  // INFERSCALE_CATALOG_VALIDATION_H_
