#include "engine/vllm/vllm_server.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <sys/socket.h>
#include <sys/un.h>

#include "base/descriptor.h"
#include "engine/vllm/completion.h"
#include "engine/vllm/control_client.h"
#include "support/catalog_fixture.h"

namespace inferscale {
namespace {

using nlohmann::json;

TEST(VllmServerTest, ACancelledRequestDoesNotMakeADeadServerAvailable) {
  VllmServerOptions options;
  options.url = *ParseUrl("http://127.0.0.1:1");
  const VllmServer server(options);
  EXPECT_FALSE(server.Get("/v1/models").ok());
  EXPECT_FALSE(server.Available());
  HttpCancellation cancellation;
  cancellation.Cancel();
  const Status status = server.Stream("/v1/completions", json::object(), std::nullopt, cancellation,
                                      [](std::string_view) { return true; });
  EXPECT_EQ(status.code(), StatusCode::kCancelled);
  EXPECT_FALSE(server.Available());
}

TEST(ControlClientTest, AnEngineThatAcceptsNobodyNeverBlocks) {
  const test::CatalogFolder folder;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = (folder.path() / "hangs").string();
  ASSERT_LT(path.size(), sizeof(address.sun_path));
  std::copy(path.begin(), path.end(), address.sun_path);
  const Descriptor listening(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(bind(listening.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(listen(listening.get(), 1), 0);
  ControlClient client(path, std::vector<std::uint8_t>(16, 1), std::chrono::milliseconds(10));
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(client.Call("hello").status().code(), StatusCode::kUnavailable);
  }
}

TEST(CompletionReaderTest, AnAnswerWithoutAnEndIsGivenUp) {
  CompletionReader reader({});
  const std::string event =
      json{{"choices", {{{"text", std::string(4 << 20, 'x')}, {"token_ids", {1}}}}}}.dump();
  int events = 0;
  while (events < 100 && reader.Take(event)) ++events;
  EXPECT_LT(events, 20);
  EXPECT_EQ(reader.status().code(), StatusCode::kDataLoss);
}

}  // namespace
}  // namespace inferscale
