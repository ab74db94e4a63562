#include "server/api_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include "support/catalog_fixture.h"

namespace inferscale {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class ApiKeysTest : public ::testing::Test {
 protected:
  ApiKeysTest() { Open(); }

  void Open() {
    keys_.reset();
    catalog_.reset();
    CatalogOptions options;
    options.folder = folder_.path();
    Result<std::unique_ptr<Catalog>> catalog = OpenSqliteCatalog(std::move(options));
    ASSERT_TRUE(catalog.ok()) << catalog.status().ToString();
    catalog_ = *std::move(catalog);
    Result<std::unique_ptr<ApiKeys>> keys = ApiKeys::Load(*catalog_);
    ASSERT_TRUE(keys.ok()) << keys.status().ToString();
    keys_ = *std::move(keys);
  }
  NewApiKey Make(ApiKey wanted = {}) {
    Result<NewApiKey> made = keys_->Create(std::move(wanted));
    EXPECT_TRUE(made.ok()) << made.status().ToString();
    return *std::move(made);
  }
  Result<Principal> Ask(const std::string& header, const std::string& value, bool required = true) {
    HttpRequest request;
    if (!header.empty()) request.headers.emplace_back(header, value);
    return keys_->Authenticate(request, required);
  }

  test::CatalogFolder folder_;
  std::unique_ptr<Catalog> catalog_;
  std::unique_ptr<ApiKeys> keys_;
};

TEST_F(ApiKeysTest, LimitsOutliveTheProcess) {
  ApiKey wanted;
  wanted.principal.limits = {.max_body_bytes = 1000, .max_facts = 5, .max_kv_bytes = 7'000'000'000};
  const std::string secret = Make(wanted).secret;
  for (int i = 0; i < 2; ++i) {
    const Result<Principal> principal = Ask("x-api-key", secret);
    ASSERT_TRUE(principal.ok());
    EXPECT_EQ(principal->limits.max_body_bytes, 1000);
    EXPECT_EQ(principal->limits.max_facts, 5);
    EXPECT_EQ(principal->limits.max_kv_bytes, 7'000'000'000);
    Open();
  }
  EXPECT_EQ(KeyJson(keys_->List(std::nullopt).front())["max_facts"], 5);
  wanted.principal.limits.max_facts = -1;
  EXPECT_FALSE(keys_->Create(wanted).ok());
}

TEST_F(ApiKeysTest, KeysOfEarlierVersionsHaveNoLimits) {
  const std::string secret = Make().secret;
  auto stored = nlohmann::json::parse(*catalog_->GetMeta("server.api_keys"));
  for (const char* name : {"max_body_bytes", "max_facts", "max_kv_bytes"}) stored[0].erase(name);
  ASSERT_TRUE(catalog_->SetMeta("server.api_keys", stored.dump()).ok());
  Open();
  const Result<Principal> principal = Ask("x-api-key", secret);
  ASSERT_TRUE(principal.ok());
  EXPECT_EQ(principal->limits.max_facts, 0);
}

TEST_F(ApiKeysTest, AKeyNamesItsTenantAndOwner) {
  ApiKey wanted;
  wanted.principal.tenant = "acme";
  wanted.principal.bound = Scope{.tenant = "ignored", .user = "anna"};
  const std::string secret = Make(wanted).secret;
  for (const auto& [header, value] : {std::pair<std::string, std::string>("x-api-key", secret),
                                      {"authorization", "Bearer " + secret},
                                      {"authorization", "token  " + secret}}) {
    const Result<Principal> principal = Ask(header, value);
    ASSERT_TRUE(principal.ok()) << header << value;
    EXPECT_EQ(principal->tenant, "acme");
    EXPECT_EQ(principal->bound->user, "anna");
    EXPECT_EQ(principal->bound->tenant, "acme");
    EXPECT_FALSE(principal->admin);
  }
}

TEST_F(ApiKeysTest, WhatIsNoKeyOpensNothing) {
  const NewApiKey made = Make();
  EXPECT_EQ(Ask("", "").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Ask("authorization", made.secret).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Ask("authorization", "Basic " + made.secret).status().code(),
            StatusCode::kInvalidArgument);
  for (const std::string& wrong :
       {made.secret + "0", made.secret.substr(1), made.key.id, made.key.prefix, std::string("x")}) {
    EXPECT_EQ(Ask("x-api-key", wrong).status().code(), StatusCode::kNotFound) << wrong;
  }
}

TEST_F(ApiKeysTest, WithoutNeedAnyWordWillDoButNoRevokedKey) {
  const NewApiKey made = Make();
  EXPECT_TRUE(Ask("", "", false)->admin);
  EXPECT_TRUE(Ask("authorization", "Bearer anything", false)->admin);
  EXPECT_FALSE(Ask("x-api-key", made.secret, false)->admin);
  ASSERT_TRUE(keys_->Revoke(made.key.id, std::nullopt).ok());
  EXPECT_EQ(Ask("x-api-key", made.secret, false).status().code(), StatusCode::kNotFound);
}

TEST_F(ApiKeysTest, KeysAndRevocationsOutliveTheProcess) {
  ApiKey wanted;
  wanted.label = "caf\xC3\xA9";
  wanted.principal.admin = true;
  wanted.requests_per_minute = 7;
  const NewApiKey kept = Make(wanted), revoked = Make();
  ASSERT_TRUE(keys_->Revoke(revoked.key.id, std::nullopt).ok());
  Open();
  EXPECT_TRUE(Ask("x-api-key", kept.secret)->admin);
  EXPECT_FALSE(Ask("x-api-key", revoked.secret).ok());
  const std::vector<ApiKey> listed = keys_->List(std::nullopt);
  ASSERT_EQ(listed.size(), 1U);
  EXPECT_EQ(listed[0].label, wanted.label);
  EXPECT_EQ(listed[0].requests_per_minute, 7);
  EXPECT_THAT(*catalog_->GetMeta("server.api_keys"), Not(HasSubstr(kept.secret)));
}

TEST_F(ApiKeysTest, AnotherTenantsKeysAreNotThere) {
  ApiKey wanted;
  wanted.principal.tenant = "acme";
  const NewApiKey made = Make(wanted);
  EXPECT_TRUE(keys_->List("other").empty());
  EXPECT_EQ(keys_->List("acme").size(), 1U);
  EXPECT_EQ(keys_->Revoke(made.key.id, "other").code(), StatusCode::kNotFound);
  EXPECT_TRUE(keys_->Revoke(made.key.id, "acme").ok());
}

TEST_F(ApiKeysTest, RefusesKeysThatMakeNoSense) {
  ApiKey both;
  both.principal.admin = true;
  both.principal.bound = Scope{.user = "anna"};
  EXPECT_EQ(keys_->Create(both).status().code(), StatusCode::kInvalidArgument);
  ApiKey ownerless;
  ownerless.principal.bound = Scope{};
  EXPECT_EQ(keys_->Create(ownerless).status().code(), StatusCode::kInvalidArgument);
  ApiKey blank;
  blank.principal.tenant = " ";
  EXPECT_EQ(keys_->Create(blank).status().code(), StatusCode::kInvalidArgument);
  ApiKey loud;
  loud.label = std::string(201, 'x');
  EXPECT_EQ(keys_->Create(loud).status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(keys_->List(std::nullopt).empty());
}

TEST_F(ApiKeysTest, ARateIsHeld) {
  ApiKey wanted;
  wanted.requests_per_minute = 2;
  const std::string secret = Make(wanted).secret;
  EXPECT_TRUE(Ask("x-api-key", secret).ok());
  EXPECT_TRUE(Ask("x-api-key", secret).ok());
  EXPECT_EQ(Ask("x-api-key", secret).status().code(), StatusCode::kResourceExhausted);
}

TEST_F(ApiKeysTest, StoredKeysThatCannotBeReadAreAnError) {
  for (const char* stored : {"{", "{}", R"([{"id":"key_1"}])", R"([{"id":5}])"}) {
    ASSERT_TRUE(catalog_->SetMeta("server.api_keys", stored).ok());
    EXPECT_EQ(ApiKeys::Load(*catalog_).status().code(), StatusCode::kDataLoss) << stored;
  }
}

}  // namespace
}  // namespace inferscale
