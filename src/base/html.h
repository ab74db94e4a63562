#ifndef INFERSCALE_BASE_HTML_H_
#define INFERSCALE_BASE_HTML_H_

#include <string>
#include <string_view>

namespace inferscale {

/// For text between tags and in quoted attributes: & < > " ' are escaped, what is not UTF-8 and
/// control characters other than line breaks and tabs become U+FFFD.
std::string EscapeHtml(std::string_view text);

}  // namespace inferscale

#endif  // INFERSCALE_BASE_HTML_H_
