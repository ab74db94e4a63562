#include "llama/file_fingerprint.h"

#include <chrono>
#include <string>
#include <system_error>

#include <spdlog/spdlog.h>
#include <nlohmann/json.hpp>

#include "base/files.h"

namespace inferscale {
namespace {

constexpr std::size_t kMaxCacheBytes = std::size_t{1} << 20;
constexpr std::size_t kMaxEntries = 64;

}  // namespace

Result<Sha256Digest> FileFingerprint(const std::filesystem::path& file,
                                     const std::filesystem::path& cache_folder) {
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::weakly_canonical(file, error);
  const std::uintmax_t size = std::filesystem::file_size(file, error);
  if (error) return NotFound("file " + file.string() + " cannot be read: " + error.message());
  const auto time = std::filesystem::last_write_time(file, error).time_since_epoch();
  const std::string stamp =
      std::to_string(size) + ":" +
      std::to_string(std::chrono::duration_cast<std::chrono::nanoseconds>(time).count());

  const std::filesystem::path cache_file = cache_folder / "fingerprints.json";
  nlohmann::json cache = nlohmann::json::object();
  if (!cache_folder.empty()) {
    if (const Result<std::string> text = ReadTextFile(cache_file, kMaxCacheBytes); text.ok()) {
      cache = nlohmann::json::parse(*text, nullptr, false);
      if (!cache.is_object()) cache = nlohmann::json::object();
    }
  }
  if (const auto entry = cache.find(absolute.string());
      entry != cache.end() && entry->is_object()) {
    const auto stored_stamp = entry->find("stamp");
    const auto stored_digest = entry->find("sha256");
    if (stored_stamp != entry->end() && *stored_stamp == stamp && stored_digest != entry->end() &&
        stored_digest->is_string()) {
      const Result<std::vector<std::uint8_t>> bytes = HexDecode(stored_digest->get<std::string>());
      Sha256Digest digest;
      if (bytes.ok() && bytes->size() == digest.size()) {
        std::copy(bytes->begin(), bytes->end(), digest.begin());
        return digest;
      }
    }
  }
  INFERSCALE_ASSIGN_OR_RETURN(const Sha256Digest digest, Sha256File(file));
  if (!cache_folder.empty()) {
    if (cache.size() >= kMaxEntries) cache = nlohmann::json::object();
    cache[absolute.string()] = {{"stamp", stamp}, {"sha256", HexEncode(digest)}};
    std::filesystem::create_directories(cache_folder, error);
    const Status written = AtomicWriteFile(
        cache_file, cache.dump(1, ' ', true, nlohmann::json::error_handler_t::replace));
    if (!written.ok()) spdlog::debug("fingerprints are not remembered: {}", written.ToString());
  }
  return digest;
}

}  // namespace inferscale
