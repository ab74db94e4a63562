#ifndef INFERSCALE_SERVER_HTTP_MESSAGE_H_
#define INFERSCALE_SERVER_HTTP_MESSAGE_H_

/// \file http_message.h
/// HttpRequest and HttpResponse as handlers see them: checked, decoded, independent of the HTTP
/// library. Value types.

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "inferscale/result.h"

namespace inferscale {

using NameValues = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;  ///< "GET"; upper case
  std::string target;  ///< as sent, for logs
  std::vector<std::string>
      path;            ///< percent-decoded segment by segment; "/a%2Fb/c/" is {"a/b","c"}
  NameValues query;    ///< decoded, in order
  NameValues headers;  ///< names in lower case, in order
  std::string body;
  std::string remote;            ///< address of the peer
  bool remote_loopback = false;  ///< the peer is on this machine
  std::string id;                ///< request id, also in the response and the logs

  /// The first header or query parameter of that name; nullptr: none.
  const std::string* Header(std::string_view lower_case_name) const;
  const std::string* Query(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  NameValues headers;
  std::string body;
};

/// Fills path and query of a request from its target. kInvalidArgument on a malformed escape, on
/// an escaped NUL and on a target that is not a path.
Status ParseTarget(std::string_view target, HttpRequest* request);

}  // namespace inferscale

#endif  // INFERSCALE_SERVER_HTTP_MESSAGE_H_
