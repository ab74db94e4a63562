#include "connector/transfer_request.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/hash.h"

namespace inferscale {
namespace {

constexpr TimeMs kNow = 1'000'000;
const std::string kSecret = "a secret of enough bytes";

TokenIds Prompt() {
  TokenIds ids(100);
  std::iota(ids.begin(), ids.end(), 1);
  return ids;
}

TransferRequest Request() {
  TransferRequest request;
  request.operation = TransferOperation::kCapture;
  request.scope_tag = 0xfedcba9876543210;
  request.epoch = 3;
  request.expires_ms = kNow + 1;
  request.salt = "salt";
  KvKey key;
  key.bytes.fill(7);
  request.blocks = {{key, 0, 10, {}}, {key, 10, 30, {"fact 1", "Straße"}}};
  return request;
}

CarriedTransfer Signed(const TransferRequest& request = Request()) {
  return SignTransferRequest(request, Prompt(), AsBytes(kSecret));
}

StatusCode Open(const CarriedTransfer& carried, const TokenIds& prompt = Prompt(),
                std::string_view salt = "salt", TimeMs now = kNow) {
  return OpenTransferRequest(carried, prompt, salt, AsBytes(kSecret), now).status().code();
}

TEST(TransferRequest, ReadsWhatIsWritten) {
  const TransferRequest request = Request();
  const auto read = OpenTransferRequest(Signed(), Prompt(), "salt", AsBytes(kSecret), kNow);
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  EXPECT_EQ(read->operation, request.operation);
  EXPECT_EQ(read->scope_tag, request.scope_tag);
  EXPECT_EQ(read->epoch, request.epoch);
  EXPECT_EQ(read->expires_ms, request.expires_ms);
  ASSERT_EQ(read->blocks.size(), 2u);
  EXPECT_EQ(read->blocks[1].key, request.blocks[1].key);
  EXPECT_EQ(read->blocks[1].begin, 10);
  EXPECT_EQ(read->blocks[1].end, 30);
  EXPECT_EQ(read->blocks[1].saw, request.blocks[1].saw);
  EXPECT_EQ(Signed(*read).request, Signed().request);
}

TEST(TransferRequest, AnyChangeBreaksTheMac) {
  const auto refused = StatusCode::kFailedPrecondition;
  const CarriedTransfer good = Signed();
  for (std::size_t i = 0; i < good.request.size(); ++i) {
    CarriedTransfer changed = good;
    changed.request[i] = changed.request[i] == '0' ? '1' : '0';
    EXPECT_EQ(Open(changed), refused) << i;
  }
  for (std::size_t i = 0; i < good.mac.size(); ++i) {
    CarriedTransfer changed = good;
    changed.mac[i] = changed.mac[i] == '0' ? '1' : '0';
    EXPECT_EQ(Open(changed), refused) << i;
  }
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{31}}) {
    EXPECT_EQ(Open({kTransferSchema, good.request, good.mac.substr(0, 2 * bytes)}), refused);
  }
  TokenIds prompt = Prompt();
  ++prompt.back();
  EXPECT_EQ(Open(good, prompt), refused);
  prompt = Prompt();
  prompt.pop_back();
  EXPECT_EQ(Open(good, prompt), refused);
  EXPECT_EQ(OpenTransferRequest(good, Prompt(), "salt", AsBytes("another secret of 20 b"), kNow)
                .status()
                .code(),
            refused);
}

TEST(TransferRequest, IsBoundToSaltAndTime) {
  EXPECT_EQ(Open(Signed()), StatusCode::kOk);
  EXPECT_EQ(Open(Signed(), Prompt(), ""), StatusCode::kFailedPrecondition);
  EXPECT_EQ(Open(Signed(), Prompt(), "another"), StatusCode::kFailedPrecondition);
  EXPECT_EQ(Open(Signed(), Prompt(), "salt", kNow + 2), StatusCode::kFailedPrecondition);
  TransferRequest unsalted = Request();
  unsalted.salt.clear();
  EXPECT_EQ(Open(Signed(unsalted), Prompt(), ""), StatusCode::kFailedPrecondition);
}

// Somebody who has the secret is not trusted with sizes and ranges either.
TEST(TransferRequest, RefusesWhatIsMalformed) {
  const auto malformed = StatusCode::kInvalidArgument;
  CarriedTransfer other = Signed();
  for (const std::int64_t schema : {std::int64_t{0}, kTransferSchema + 1, std::int64_t{-1}}) {
    other.schema = schema;
    EXPECT_EQ(Open(other), StatusCode::kUnsupported);
  }
  EXPECT_EQ(Open({kTransferSchema, "xy", Signed().mac}), malformed);
  EXPECT_EQ(Open({kTransferSchema, Signed().request, "?"}), malformed);
  const auto with_block = [](std::int32_t begin, std::int32_t end) {
    TransferRequest request = Request();
    request.blocks[1].begin = begin;
    request.blocks[1].end = end;
    return Open(Signed(request));
  };
  EXPECT_EQ(with_block(10, 100), StatusCode::kOk);
  EXPECT_EQ(with_block(9, 30), malformed);    // overlaps
  EXPECT_EQ(with_block(10, 10), malformed);   // empty
  EXPECT_EQ(with_block(10, 101), malformed);  // beyond the prompt
  EXPECT_EQ(with_block(-1, 30), malformed);
  TransferRequest request = Request();
  request.operation = static_cast<TransferOperation>(3);
  EXPECT_EQ(Open(Signed(request)), malformed);
  request = Request();
  request.salt.assign(2000, 'x');
  EXPECT_EQ(Open(Signed(request), Prompt(), request.salt), malformed);
}

// Every cut and every byte changed, under a MAC that agrees with it.
TEST(TransferRequest, ReadsNothingBeyondItsFields) {
  const std::vector<std::uint8_t> good = *HexDecode(Signed().request);
  const auto sealed = [](const std::vector<std::uint8_t>& fields) {
    ByteWriter message;
    message.WriteString("inferscale transfer 2");
    message.WriteU64(fields.size());
    message.WriteBytes(fields);
    message.WriteU64(Prompt().size());
    for (const TokenId id : Prompt()) message.WriteI32(id);
    return CarriedTransfer{kTransferSchema, HexEncode(fields),
                           HexEncode(HmacSha256(AsBytes(kSecret), message.bytes()))};
  };
  ASSERT_EQ(Open(sealed(good)), StatusCode::kOk);
  for (std::size_t size = 0; size < good.size(); ++size) {
    EXPECT_NE(Open(sealed({good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size)})),
              StatusCode::kOk)
        << size;
  }
  std::vector<std::uint8_t> longer = good;
  longer.push_back(0);
  EXPECT_EQ(Open(sealed(longer)), StatusCode::kInvalidArgument);
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::vector<std::uint8_t> changed = good;
    changed[i] = 0xff;
    Open(sealed(changed));  // no sanitizer complains
  }
}

}  // namespace
}  // namespace inferscale
