#ifndef INFERSCALE_MEMORY_INJECTED_TEXTS_H_
#define INFERSCALE_MEMORY_INJECTED_TEXTS_H_

#include <span>
#include <string>
#include <string_view>
#include <unordered_set>

namespace inferscale {

/// Texts that were served as memories, so that a client or a model repeating them does not make
/// them facts a second time. Compared by what duplicates are compared by, with runs of blanks as
/// one, as a plain text or as a served line ("- (date) Name: text").
class InjectedTexts {
 public:
  explicit InjectedTexts(std::span<const std::string> texts);

  bool Contains(std::string_view text) const;
  /// The text without those of its lines that are injected ones; byte for byte if none is.
  std::string RemoveLines(std::string_view text) const;

 private:
  std::unordered_set<std::string> keys_;
};

}  // namespace inferscale

#endif  // INFERSCALE_MEMORY_INJECTED_TEXTS_H_
