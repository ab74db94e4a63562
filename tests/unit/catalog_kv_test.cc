#include <gmock/gmock.h>

#include "support/catalog_fixture.h"

namespace inferscale::test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;
using testing::UnorderedElementsAre;

class CatalogKv : public CatalogTest {
 protected:
  std::vector<std::string> Queue(std::int32_t limit = 100) {
    std::vector<std::string> ids;
    const auto listed = *catalog_->FactsWithoutKv("encoding", limit);
    for (const Fact& fact : listed) ids.push_back(fact.id);
    return ids;
  }
  std::size_t Record(const KvRecord& record) {
    return catalog_->RecordKv(std::span(&record, 1))->size();
  }
  LedgerEntry EntryOf(ScopeId scope, const std::vector<std::string>& facts) {
    LedgerEntry entry;
    entry.ids = {1, -5, 70000, 2147483647};
    std::int32_t at = 0;
    for (const std::string& id : facts) {
      entry.facts.push_back({id, 1, KeyOf(9), at, at + 1});
      ++at;
    }
    entry.messages = 2;
    entry.prefix_tokens = 1;
    entry.epoch = InfoOf(scope).epoch;
    entry.encoding_id = "encoding";
    entry.prefix_key = KeyOf(3);
    return entry;
  }
  bool HasLedger(ScopeId scope, const std::string& hash) {
    return catalog_->GetLedger(scope, hash)->has_value();
  }
};

TEST_F(CatalogKv, QueueHoldsFactsUntilTheirBlocksAreReady) {
  const ScopeId scope = ScopeOf("anna");
  const auto ids = Add(scope, {FactOf("a"), FactOf("b"), FactOf("c")});
  EXPECT_THAT(Queue(), ElementsAre(ids[0], ids[1], ids[2]));
  EXPECT_THAT(Queue(2), ElementsAre(ids[0], ids[1]));
  EXPECT_EQ(*catalog_->CountFactsWithoutKv("encoding"), 3);

  ASSERT_EQ(Record({KeyOf(1), ids[0], 1, "encoding", {}}), 1u);
  EXPECT_EQ(Queue().size(), 3u) << "recorded, but there is no block yet";
  EXPECT_FALSE(HasKv(ids[0]));
  const KvKey key = KeyOf(1);
  ASSERT_TRUE(catalog_->MarkKvReady(std::span(&key, 1)).ok());
  EXPECT_THAT(Queue(), ElementsAre(ids[1], ids[2]));
  EXPECT_TRUE(HasKv(ids[0]));
  EXPECT_EQ(*catalog_->CountFactsWithoutKv("encoding"), 2);
  EXPECT_EQ(*catalog_->CountFactsWithoutKv("another"), 3);

  ASSERT_TRUE(catalog_->DropKvRecords(std::span(&key, 1)).ok());
  EXPECT_EQ(Queue().size(), 3u);
  EXPECT_FALSE(HasKv(ids[0]));
}

TEST_F(CatalogKv, AnErasureFindsBlocksThatWereRecordedButNeverReadyOrDropped) {
  const ScopeId scope = ScopeOf("anna");
  const auto ids = Add(scope, {FactOf("a"), FactOf("b")});
  ASSERT_EQ(Record({KeyOf(1), ids[0], 1, "encoding", {}}), 1u);
  AddKv(ids[1], KeyOf(2));
  const KvKey dropped = KeyOf(2);
  ASSERT_TRUE(catalog_->DropKvRecords(std::span(&dropped, 1)).ok());
  EXPECT_THAT(catalog_->DeleteFact(ids[0])->keys, ElementsAre(KeyOf(1)));
  EXPECT_THAT(catalog_->DeleteFact(ids[1])->keys, ElementsAre(KeyOf(2)));
}

TEST_F(CatalogKv, RecordsOfGoneFactsOldVersionsAndGoneContextAreLeftOut) {
  const ScopeId scope = ScopeOf("anna");
  const std::string id = AddText(scope, "a"), seen = AddText(scope, "b");
  EXPECT_EQ(Record({KeyOf(1), "gone", 1, "encoding", {}}), 0u);
  EXPECT_EQ(Record({KeyOf(1), id, 2, "encoding", {}}), 0u);
  EXPECT_EQ(Record({KeyOf(1), id, 1, "encoding", {"gone"}}), 0u);
  EXPECT_EQ(Record({KeyOf(1), id, 1, "encoding", {"turn:99"}}), 0u);
  EXPECT_EQ(Record({KeyOf(1), id, 1, "encoding", {"turn:1 OR 1"}}), 0u);
  EXPECT_EQ(Record({KeyOf(1), id, 1, "encoding", {seen}}), 1u);
  ASSERT_TRUE(catalog_->DeleteFact(seen).ok());
  EXPECT_EQ(Record({KeyOf(1), id, 1, "encoding", {seen}}), 0u);
  const KvRecord nameless{KeyOf(1), id, 1, "", {}};
  EXPECT_FALSE(catalog_->RecordKv(std::span(&nameless, 1)).ok());
}

TEST_F(CatalogKv, WhatSawADeletedFactGoesToo) {
  const ScopeId scope = ScopeOf("anna");
  const auto ids = Add(scope, {FactOf("a"), FactOf("b"), FactOf("c")});
  AddKv(ids[0], KeyOf(1));
  AddKv(ids[1], KeyOf(2), {ids[0]});
  AddKv(ids[2], KeyOf(3), {ids[1]});
  const auto records = *catalog_->GetKvRecords(ids, "encoding");
  EXPECT_THAT(records[1]->saw, ElementsAre(ids[0]));
  EXPECT_EQ(records[1]->key, KeyOf(2));
  EXPECT_EQ(records[1]->fact_version, 1);
  EXPECT_THAT(catalog_->DeleteFact(ids[0])->keys, UnorderedElementsAre(KeyOf(1), KeyOf(2)));
  EXPECT_FALSE(HasKv(ids[1]));
  EXPECT_TRUE(HasKv(ids[2])) << "it saw a fact that is still there";
}

TEST_F(CatalogKv, AForgottenTurnTakesTheBlocksThatSawIt) {
  const ScopeId scope = ScopeOf("anna");
  const std::string said = AddSaid(scope, "I like tea");
  const std::string other = AddText(scope, "b");
  const TurnId turn = catalog_->GetFact(said)->source_turns.at(0);
  AddKv(other, KeyOf(5), {"turn:" + std::to_string(turn)});
  EXPECT_THAT(catalog_->ForgetFact(said)->keys, ElementsAre(KeyOf(5)));
  EXPECT_FALSE(HasKv(other));
}

TEST_F(CatalogKv, ABlockSharedByTwoFactsGoesForBoth) {
  const ScopeId scope = ScopeOf("anna");
  const auto ids = Add(scope, {FactOf("a"), FactOf("b")});
  AddKv(ids[0], KeyOf(1));
  AddKv(ids[1], KeyOf(1));
  EXPECT_THAT(catalog_->DeleteFact(ids[0])->keys, ElementsAre(KeyOf(1)));
  EXPECT_THAT(Queue(), ElementsAre(ids[1]));
}

TEST_F(CatalogKv, AnotherKeyForTheSameFactLeavesTheOldBlockToBeErased) {
  const ScopeId scope = ScopeOf("anna");
  const std::string id = AddText(scope, "a");
  AddKv(id, KeyOf(1));
  AddKv(id, KeyOf(2));
  const auto pending = *catalog_->PendingErasures();
  ASSERT_THAT(pending, SizeIs(1));
  EXPECT_THAT(pending[0].keys, ElementsAre(KeyOf(1)));
  EXPECT_EQ(pending[0].scope_tag, InfoOf(scope).tag);
  EXPECT_FALSE(pending[0].whole_scope);
}

TEST_F(CatalogKv, ARenameDropsWhatIsServedUnderTheScopesName) {
  const ScopeId scope = ScopeOf("anna");
  NewFact named = FactOf("b");
  named.fact.name = "Ben";
  const auto ids = Add(scope, {FactOf("a"), named});
  AddKv(ids[0], KeyOf(1));
  AddKv(ids[1], KeyOf(2));
  ASSERT_TRUE(catalog_->PutLedger(scope, "h", EntryOf(scope, {})).ok());
  const std::uint64_t epoch = InfoOf(scope).epoch;
  ASSERT_TRUE(catalog_->SetDisplayName(scope, "Anna").ok());
  EXPECT_EQ(InfoOf(scope).display_name, "Anna");
  EXPECT_EQ(InfoOf(scope).epoch, epoch + 1);
  EXPECT_FALSE(HasKv(ids[0]));
  EXPECT_TRUE(HasKv(ids[1]));
  EXPECT_FALSE(HasLedger(scope, "h"));
  const auto pending = *catalog_->PendingErasures();
  ASSERT_THAT(pending, SizeIs(1));
  EXPECT_THAT(pending[0].keys, ElementsAre(KeyOf(1)));

  ASSERT_TRUE(catalog_->SetDisplayName(scope, "Anna").ok());
  EXPECT_EQ(InfoOf(scope).epoch, epoch + 1) << "nothing changed";
  EXPECT_EQ(catalog_->SetDisplayName(999, "x").code(), StatusCode::kNotFound);
  EXPECT_EQ(catalog_->SetDisplayName(scope, "\xff").code(), StatusCode::kInvalidArgument);
}

TEST_F(CatalogKv, SupersededFactsAreNotEncoded) {
  const ScopeId scope = ScopeOf("anna");
  const std::string old = AddText(scope, "a");
  NewFact newer = FactOf("b");
  newer.supersedes = {old};
  const std::string id = Add(scope, {newer})[0];
  EXPECT_THAT(Queue(), ElementsAre(id));
}

TEST_F(CatalogKv, LedgerComesBackWholeAfterARestart) {
  const ScopeId scope = ScopeOf("anna");
  const std::string id = AddText(scope, "a");
  const LedgerEntry entry = EntryOf(scope, {id});
  ASSERT_TRUE(catalog_->PutLedger(scope, "h'1", entry).ok());
  Open();
  const auto read = *catalog_->GetLedger(scope, "h'1");
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->ids, entry.ids);
  ASSERT_THAT(read->facts, SizeIs(1));
  EXPECT_EQ(read->facts[0].fact_id, id);
  EXPECT_EQ(read->facts[0].version, 1);
  EXPECT_EQ(read->facts[0].key, KeyOf(9));
  EXPECT_EQ(read->facts[0].end, 1);
  EXPECT_EQ(read->messages, 2);
  EXPECT_EQ(read->prefix_tokens, 1);
  EXPECT_EQ(read->epoch, entry.epoch);
  EXPECT_EQ(read->encoding_id, "encoding");
  EXPECT_EQ(read->prefix_key, KeyOf(3));
  EXPECT_FALSE(HasLedger(scope, "other"));
  EXPECT_FALSE(HasLedger(ScopeOf("ben"), "h'1"));
}

TEST_F(CatalogKv, LedgerExpires) {
  const ScopeId scope = ScopeOf("anna");
  ASSERT_TRUE(catalog_->PutLedger(scope, "h", EntryOf(scope, {})).ok());
  now_ms_ += Options().ledger_lifetime_ms;
  EXPECT_TRUE(HasLedger(scope, "h"));
  now_ms_ += 1;
  EXPECT_FALSE(HasLedger(scope, "h"));
}

TEST_F(CatalogKv, LedgerGoesWithAFactThatStandsInIt) {
  const ScopeId scope = ScopeOf("anna"), agent = ScopeOf("agent");
  const auto ids = Add(scope, {FactOf("a"), FactOf("b"), FactOf("c")});
  const auto put_all = [&] {
    ASSERT_TRUE(catalog_->PutLedger(scope, "with a", EntryOf(scope, {ids[0]})).ok());
    ASSERT_TRUE(catalog_->PutLedger(scope, "with b", EntryOf(scope, {ids[1]})).ok());
    ASSERT_TRUE(catalog_->PutLedger(agent, "shared", EntryOf(agent, {ids[0], ids[2]})).ok());
  };
  put_all();
  ASSERT_TRUE(catalog_->DeleteFact(ids[0]).ok());
  EXPECT_FALSE(HasLedger(scope, "with a"));
  EXPECT_FALSE(HasLedger(agent, "shared"));
  EXPECT_TRUE(HasLedger(scope, "with b"));
  ASSERT_TRUE(catalog_->PutLedger(agent, "shared", EntryOf(agent, {ids[2]})).ok());
  FactUpdate update;
  update.text = "b2";
  ASSERT_TRUE(catalog_->UpdateFact(ids[1], update).ok());
  EXPECT_FALSE(HasLedger(scope, "with b"));
  EXPECT_TRUE(HasLedger(agent, "shared"));
  ASSERT_TRUE(catalog_->PutLedger(scope, "none", EntryOf(scope, {})).ok());
  ASSERT_TRUE(catalog_->ForgetFact(ids[1]).ok());
  EXPECT_FALSE(HasLedger(scope, "none")) << "the conversation itself may say it";
  ASSERT_TRUE(catalog_->ForgetScopes(std::span(&scope, 1)).ok());
  EXPECT_FALSE(HasLedger(agent, "shared"));
}

TEST_F(CatalogKv, ALedgerEntryThatWasUnderWayDuringADeleteIsNotKept) {
  const ScopeId scope = ScopeOf("anna"), agent = ScopeOf("agent");
  const auto ids = Add(scope, {FactOf("a"), FactOf("b")});
  const LedgerEntry before = EntryOf(scope, {ids[1]});
  const LedgerEntry shared = EntryOf(agent, {ids[0]});
  ASSERT_TRUE(catalog_->DeleteFact(ids[0]).ok());
  ASSERT_TRUE(catalog_->PutLedger(scope, "h", before).ok());
  ASSERT_TRUE(catalog_->PutLedger(agent, "h", shared).ok());
  EXPECT_FALSE(HasLedger(scope, "h"));
  EXPECT_FALSE(HasLedger(agent, "h"));
}

TEST_F(CatalogKv, ImpossibleLedgerEntriesAreRefused) {
  const ScopeId scope = ScopeOf("anna");
  const std::string id = AddText(scope, "a");
  LedgerEntry entry = EntryOf(scope, {id});
  entry.facts[0].end = 5;
  EXPECT_EQ(catalog_->PutLedger(scope, "h", entry).code(), StatusCode::kInvalidArgument);
  entry = EntryOf(scope, {id});
  entry.prefix_tokens = 5;
  EXPECT_EQ(catalog_->PutLedger(scope, "h", entry).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(catalog_->PutLedger(999, "h", EntryOf(scope, {})).code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace inferscale::test
