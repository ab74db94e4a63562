#include "server/http_message.h"

#include <algorithm>

// Header-only, so that no compiled Boost library is needed.
#include <boost/url/parse.hpp>
#include <boost/url/src.hpp>

namespace inferscale {
namespace {

const std::string* Find(const NameValues& values, std::string_view name) {
  const auto found =
      std::find_if(values.begin(), values.end(), [&](const auto& v) { return v.first == name; });
  return found == values.end() ? nullptr : &found->second;
}

}  // namespace

const std::string* HttpRequest::Header(std::string_view lower_case_name) const {
  return Find(headers, lower_case_name);
}

const std::string* HttpRequest::Query(std::string_view name) const { return Find(query, name); }

Status ParseTarget(std::string_view target, HttpRequest* request) {
  const auto url = boost::urls::parse_origin_form(target);
  if (!url)
    return InvalidArgument("the request's target is not a valid path: " + url.error().message());
  // A NUL would cut short whatever takes the text for a C string.
  if (target.find("%00") != std::string_view::npos)
    return InvalidArgument("the request's target holds an escaped NUL");
  request->target = target;
  for (const auto& segment : url->segments()) request->path.push_back(segment);
  // With and without a trailing slash are the same path.
  if (!request->path.empty() && request->path.back().empty()) request->path.pop_back();
  boost::urls::encoding_opts plus_is_space;
  plus_is_space.space_as_plus = true;
  for (const auto& parameter : url->params(plus_is_space)) {
    request->query.emplace_back(parameter.key, parameter.has_value ? parameter.value : "");
  }
  return OkStatus();
}

}  // namespace inferscale
