#include "connector/transfer_request.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/bytes.h"

namespace inferscale {
namespace {

constexpr TimeMs kNow = 1'000'000;
const std::string kSecret = "a secret of enough bytes";

TokenIds Prompt() {
  TokenIds ids(100);
  std::iota(ids.begin(), ids.end(), 1);
  return ids;
}

TransferRequest Signed() {
  TransferRequest request;
  request.operation = TransferOperation::kCapture;
  request.scope_tag = 0xfedcba9876543210;
  request.epoch = 3;
  request.expires_ms = kNow + 1;
  request.salt = "salt";
  KvKey key;
  key.bytes.fill(7);
  request.blocks = {{key, 0, 10, {}}, {key, 10, 30, {"fact 1", "Straße"}}};
  request.mac = TransferMac(request, Prompt(), AsBytes(kSecret));
  return request;
}

StatusCode Verify(const TransferRequest& request, const TokenIds& prompt = Prompt(),
                  std::string_view salt = "salt", TimeMs now = kNow) {
  return VerifyTransferRequest(request, prompt, salt, AsBytes(kSecret), now).code();
}

TEST(TransferRequest, ReadsWhatIsWritten) {
  const TransferRequest request = Signed();
  const auto read = ParseTransferRequest(SerializeTransferRequest(request), 100);
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  EXPECT_EQ(SerializeTransferRequest(*read), SerializeTransferRequest(request));
  EXPECT_EQ(read->scope_tag, request.scope_tag);
  EXPECT_EQ(read->blocks[1].saw, request.blocks[1].saw);
  EXPECT_EQ(Verify(*read), StatusCode::kOk);
}

TEST(TransferRequest, AnyChangeBreaksTheMac) {
  const auto refused = StatusCode::kFailedPrecondition;
  TransferRequest changed = Signed();
  changed.operation = TransferOperation::kInject;
  EXPECT_EQ(Verify(changed), refused);
  changed = Signed();
  ++changed.scope_tag;
  EXPECT_EQ(Verify(changed), refused);
  changed = Signed();
  ++changed.epoch;
  EXPECT_EQ(Verify(changed), refused);
  changed = Signed();
  ++changed.expires_ms;
  EXPECT_EQ(Verify(changed), refused);
  changed = Signed();
  changed.salt = "other";
  EXPECT_EQ(Verify(changed, Prompt(), "other"), refused);
  changed = Signed();
  changed.blocks[0].key.bytes[15] ^= 1;
  EXPECT_EQ(Verify(changed), refused);
  changed = Signed();
  --changed.blocks[1].end;
  EXPECT_EQ(Verify(changed), refused);
  changed = Signed();
  changed.blocks[1].saw.pop_back();
  EXPECT_EQ(Verify(changed), refused);
  TokenIds prompt = Prompt();
  ++prompt.back();
  EXPECT_EQ(Verify(Signed(), prompt), refused);
  changed = Signed();
  changed.mac.pop_back();
  EXPECT_EQ(Verify(changed), refused);
}

TEST(TransferRequest, IsBoundToSaltAndTime) {
  EXPECT_EQ(Verify(Signed()), StatusCode::kOk);
  EXPECT_EQ(Verify(Signed(), Prompt(), ""), StatusCode::kFailedPrecondition);
  EXPECT_EQ(Verify(Signed(), Prompt(), "another"), StatusCode::kFailedPrecondition);
  EXPECT_EQ(Verify(Signed(), Prompt(), "salt", kNow + 2), StatusCode::kFailedPrecondition);
  TransferRequest unsalted = Signed();
  unsalted.salt.clear();
  unsalted.mac = TransferMac(unsalted, Prompt(), AsBytes(kSecret));
  EXPECT_EQ(Verify(unsalted, Prompt(), ""), StatusCode::kFailedPrecondition);
}

TEST(TransferRequest, RefusesWhatIsMalformed) {
  const nlohmann::json good = nlohmann::json::parse(SerializeTransferRequest(Signed()));
  const auto code = [](const nlohmann::json& object) {
    return ParseTransferRequest(object.dump(), 100).status().code();
  };
  ASSERT_EQ(code(good), StatusCode::kOk);
  nlohmann::json bad = good;
  bad["schema"] = 2;
  EXPECT_EQ(code(bad), StatusCode::kUnsupported);
  for (const auto& [field, value] : good.items()) {
    bad = good;
    bad.erase(field);
    EXPECT_EQ(code(bad), StatusCode::kInvalidArgument) << field;
    for (const nlohmann::json& wrong :
         {nlohmann::json(nullptr), nlohmann::json(-1), nlohmann::json(1.5),
          nlohmann::json::array({1}), nlohmann::json::object()}) {
      bad[field] = wrong;
      EXPECT_NE(code(bad), StatusCode::kOk) << field << " " << wrong;
    }
  }
  const auto with_block = [&](int begin, std::int64_t end) {
    bad = good;
    bad["blocks"][1]["begin"] = begin;
    bad["blocks"][1]["end"] = end;
    return code(bad);
  };
  EXPECT_EQ(with_block(10, 100), StatusCode::kOk);
  EXPECT_EQ(with_block(9, 30), StatusCode::kInvalidArgument);    // overlaps
  EXPECT_EQ(with_block(10, 10), StatusCode::kInvalidArgument);   // empty
  EXPECT_EQ(with_block(10, 101), StatusCode::kInvalidArgument);  // beyond the prompt
  EXPECT_EQ(with_block(10, 1LL << 40), StatusCode::kInvalidArgument);
  bad = good;
  bad["blocks"][0]["key"] = "00";
  EXPECT_EQ(code(bad), StatusCode::kInvalidArgument);
  for (const std::string_view text : {"", "[]", "{", "nul\xff", "\"x\"", "7"}) {
    EXPECT_FALSE(ParseTransferRequest(text, 100).ok()) << text;
  }
}

}  // namespace
}  // namespace inferscale
