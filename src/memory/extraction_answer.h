#ifndef INFERSCALE_MEMORY_EXTRACTION_ANSWER_H_
#define INFERSCALE_MEMORY_EXTRACTION_ANSWER_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace inferscale {

/// One item of a model's answer, unchecked but for its types.
struct AnswerFact {
  std::string text;
  std::string name;
  std::vector<std::int64_t> contradicts;
};

/// The complete items of {"facts":[…]} or of a bare list. Fences, reasoning and text around them
/// are passed over, and so are items that are no JSON, have no text, or were cut off.
std::vector<AnswerFact> ParseExtractionAnswer(std::string_view answer);

}  // namespace inferscale

#endif  // INFERSCALE_MEMORY_EXTRACTION_ANSWER_H_
