#include <SQLiteCpp/SQLiteCpp.h>
#include <gmock/gmock.h>

#include "support/catalog_fixture.h"

namespace inferscale::test {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

class CatalogForget : public CatalogTest {
 protected:
  void ExpectNowhere(std::string_view needle) {
    EXPECT_THAT(folder_.FilesHolding(needle), IsEmpty()) << "found: " << needle;
  }
  void ExpectSomewhere(std::string_view needle) {
    EXPECT_FALSE(folder_.FilesHolding(needle).empty()) << "not found: " << needle;
  }
  static std::string BytesOf(const TokenIds& ids) {
    return {reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(TokenId)};
  }
  /// Facts enough to spread the index over many pages.
  void AddOthers(ScopeId scope, int count) {
    std::vector<NewFact> facts;
    for (int i = 0; i < count; ++i) {
      facts.push_back(FactOf("filler number " + std::to_string(i) + " about gardens and rivers"));
    }
    Add(scope, std::move(facts));
  }
};

TEST_F(CatalogForget, AFactLeavesNoByteBehind) {
  const ScopeId scope = ScopeOf("anna");
  AddOthers(scope, 500);
  const std::string secret = "the safe opens with Xylophonist seventeen";
  const std::string id = AddSaid(scope, secret);
  AddOthers(ScopeOf("ben"), 500);
  LedgerEntry entry;
  entry.ids = {111222333, 444555666, 777888999};
  entry.facts = {{id, 1, KeyOf(1), 0, 1}};
  entry.epoch = InfoOf(scope).epoch;
  ASSERT_TRUE(catalog_->PutLedger(scope, "h", entry).ok());
  AddKv(id, KeyOf(1));
  ExpectSomewhere(secret);
  ExpectSomewhere("xylophonist");
  ExpectSomewhere(BytesOf(entry.ids));

  const Erasure erasure = *catalog_->ForgetFact(id);
  EXPECT_THAT(erasure.keys, ElementsAre(KeyOf(1)));
  ExpectNowhere(secret);
  ExpectNowhere("Xylophonist");
  ExpectNowhere("xylophonist");
  ExpectNowhere("xylophon");
  ExpectNowhere(BytesOf(entry.ids));
  ExpectNowhere(BytesOf({444555666}));
  EXPECT_EQ(catalog_->GetFact(id).status().code(), StatusCode::kNotFound);
  EXPECT_THAT(*catalog_->History(id), IsEmpty());
  EXPECT_THAT(*catalog_->PendingErasures(), SizeIs(1));
  EXPECT_EQ(*catalog_->CountFacts(QueryOf(scope)), 500);
  EXPECT_EQ(InfoOf(scope).facts, 500);
  EXPECT_THAT(SearchIds(scope, "gardens"), SizeIs(100));
  EXPECT_EQ(catalog_->ForgetFact(id).status().code(), StatusCode::kNotFound);
}

TEST_F(CatalogForget, ChineseTextGoesWithItsPairs) {
  const ScopeId scope = ScopeOf("anna");
  const std::string kept = AddText(scope, "她住在北京");
  const std::string secret = "保险箱的密码是蝴蝶兰";
  const std::string id = AddSaid(scope, secret);
  ExpectSomewhere("蝴蝶");
  ASSERT_TRUE(catalog_->ForgetFact(id).ok());
  for (const char* needle : {"保险箱", "蝴蝶", "密码", "蝴", "兰", "险"}) ExpectNowhere(needle);
  EXPECT_THAT(SearchIds(scope, "北京"), ElementsAre(kept));
}

TEST_F(CatalogForget, AFactThatSharesWordsKeepsThem) {
  const ScopeId scope = ScopeOf("anna");
  const std::string kept = AddText(scope, "the marmalade is in the cellar");
  const std::string id = AddText(scope, "the marmalade was stolen by Quetzalcoatl");
  ASSERT_TRUE(catalog_->ForgetFact(id).ok());
  ExpectNowhere("Quetzalcoatl");
  ExpectNowhere("quetzalcoatl");
  ExpectNowhere("marmalade was stolen");
  EXPECT_THAT(SearchIds(scope, "marmalade"), ElementsAre(kept));
}

TEST_F(CatalogForget, EarlierTextsGoTooAndSoDoesADeletedFact) {
  const ScopeId scope = ScopeOf("anna");
  const std::string id = AddText(scope, "first wording Abracadabra");
  FactUpdate update;
  for (const char* text : {"second wording Balderdash", "third wording Cacophony"}) {
    update.text = text;
    ASSERT_TRUE(catalog_->UpdateFact(id, update).ok());
  }
  ASSERT_TRUE(catalog_->DeleteFact(id).ok());
  ExpectSomewhere("Abracadabra");
  const ScopeInfo before = InfoOf(scope);
  const Erasure erasure = *catalog_->ForgetFact(id);
  EXPECT_EQ(erasure.epoch, before.epoch + 1);
  EXPECT_EQ(InfoOf(scope).facts, 0);
  for (const char* needle : {"Abracadabra", "abracadabra", "Balderdash", "balderdash", "Cacophony",
                             "cacophoni", "cacophony"}) {
    ExpectNowhere(needle);
  }
}

TEST_F(CatalogForget, TheHistoryOfWhatItContradictedForgetsItToo) {
  const ScopeId scope = ScopeOf("anna");
  const std::string old = AddText(scope, "lives in Paris");
  NewFact newer = FactOf("lives in Zanzibar");
  newer.supersedes = {old};
  const std::string id = Add(scope, {newer})[0];
  ASSERT_TRUE(catalog_->ForgetFact(id).ok());
  ExpectNowhere("Zanzibar");
  ExpectNowhere("zanzibar");
  EXPECT_EQ(catalog_->GetFact(old)->superseded_by, "") << "it holds again";
  EXPECT_THAT(*catalog_->History(old), SizeIs(2));
}

TEST_F(CatalogForget, TurnsGoUnlessAnotherFactNeedsThem) {
  const ScopeId scope = ScopeOf("anna");
  IngestBatch batch;
  batch.scope_id = scope;
  batch.turns = {Turn{0, "user", "", "Wolfgang plays the Theremin", 0},
                 Turn{0, "user", "", "and sings in a Barbershop", 0},
                 Turn{0, "user", "", "what a day", 0}};
  batch.extract_later = true;
  NewFact a = FactOf("Wolfgang plays"), b = FactOf("Wolfgang sings");
  a.source_turn_indexes = {0, 1};
  b.source_turn_indexes = {1};
  batch.facts = {a, b};
  const IngestOutcome outcome = *catalog_->Ingest(batch);
  ASSERT_TRUE(catalog_->FailJob(*outcome.job_id, "cannot parse 'Theremin'", false).ok());
  ASSERT_TRUE(catalog_->ForgetFact(outcome.facts[0].fact_id).ok());
  ExpectNowhere("Theremin");
  ExpectSomewhere("Barbershop");
  EXPECT_THAT(*catalog_->GetTurns(outcome.turns), SizeIs(2));
  const auto jobs = *catalog_->PendingJobs("extract", 10);
  ASSERT_THAT(jobs, SizeIs(1));
  EXPECT_THAT(jobs[0].turns, ElementsAre(outcome.turns[2])) << "the others gave what was forgotten";
  ASSERT_TRUE(catalog_->ForgetFact(outcome.facts[1].fact_id).ok());
  ExpectNowhere("Barbershop");
  EXPECT_THAT(*catalog_->GetTurns(outcome.turns), SizeIs(1));
}

TEST_F(CatalogForget, ARepeatedFactTakesAllTurnsThatSaidIt) {
  const ScopeId scope = ScopeOf("anna");
  const std::string id = AddSaid(scope, "owns a Stradivarius");
  EXPECT_EQ(AddSaid(scope, "OWNS A STRADIVARIUS"), id);
  ASSERT_TRUE(catalog_->ForgetFact(id).ok());
  ExpectNowhere("Stradivarius");
  ExpectNowhere("STRADIVARIUS");
}

TEST_F(CatalogForget, AScopeLeavesNothingButItsErasure) {
  Scope owner;
  owner.user = "bartholomew";
  owner.agent = "gardener";
  const ScopeInfo info = *catalog_->EnsureScope(owner);
  ASSERT_TRUE(catalog_->SetDisplayName(info.id, "Bartholomew the Great").ok());
  const std::string id = AddSaid(info.id, "grows Rhododendron");
  FactUpdate update;
  update.text = "grows Chrysanthemum";
  update.metadata_json = R"({"plant":"Edelweiss"})";
  ASSERT_TRUE(catalog_->UpdateFact(id, update).ok());
  IngestBatch batch;
  batch.scope_id = info.id;
  batch.turns = {Turn{0, "user", "Hieronymus", "unread Turnip", 0}};
  batch.extract_later = true;
  batch.job_payload_json = R"({"prompt":"Persimmon"})";
  Add(batch);
  LedgerEntry entry;
  entry.ids = {111222333, 444555666};
  entry.epoch = InfoOf(info.id).epoch;
  ASSERT_TRUE(catalog_->PutLedger(info.id, "h", entry).ok());
  const std::string gone = AddText(info.id, "short-lived Marigold");
  ASSERT_TRUE(catalog_->DeleteFact(gone).ok());
  AddKv(id, KeyOf(4), {}, 2);
  const ScopeId other = ScopeOf("ben");
  const std::string kept = AddText(other, "grows tomatoes");

  const auto erasures = *catalog_->ForgetScopes(std::span(&info.id, 1));
  ASSERT_THAT(erasures, SizeIs(1));
  EXPECT_TRUE(erasures[0].whole_scope);
  EXPECT_EQ(erasures[0].scope_tag, info.tag);
  EXPECT_GT(erasures[0].epoch, info.epoch);
  EXPECT_THAT(erasures[0].keys, ElementsAre(KeyOf(4)));
  for (const char* needle : {"bartholomew", "Bartholomew", "gardener", "Rhododendron",
                             "rhododendron", "Chrysanthemum", "chrysanthemum", "Edelweiss",
                             "Hieronymus", "Turnip", "Persimmon", "Marigold", "marigold"}) {
    ExpectNowhere(needle);
  }
  ExpectNowhere(BytesOf(entry.ids));
  EXPECT_EQ(catalog_->GetScope(info.id).status().code(), StatusCode::kNotFound);
  EXPECT_TRUE(catalog_->GetFact(kept).ok());
  EXPECT_NE(catalog_->EnsureScope(owner)->id, info.id) << "an id is never used again";
}

TEST_F(CatalogForget, TextsOfAllSizesLeaveNothingInReusedPages) {
  const ScopeId secret = ScopeOf("anna"), kept = ScopeOf("ben");
  // Pages split, merge and overflow while facts of both owners come, change and go.
  const auto text = [](const char* mark, int number) {
    return std::string(mark) + std::to_string(number) + std::string((number * 37) % 5000, ' ') +
           "end of " + mark;
  };
  std::vector<std::string> ids;
  for (int round = 0; round < 6; ++round) {
    std::vector<NewFact> secrets, others;
    for (int i = 0; i < 60; ++i) {
      secrets.push_back(FactOf(text("Quagmire", round * 60 + i)));
      others.push_back(FactOf(text("Daffodil", round * 60 + i)));
    }
    for (std::string& id : Add(secret, std::move(secrets))) ids.push_back(std::move(id));
    Add(kept, std::move(others));
    for (std::size_t i = static_cast<std::size_t>(round); i < ids.size(); i += 7) {
      FactUpdate update;
      update.text = text("Quagmire", 1000 * (round + 1) + static_cast<int>(i));
      ASSERT_TRUE(catalog_->UpdateFact(ids[i], update).ok());
    }
  }
  ASSERT_TRUE(catalog_->ForgetScopes(std::span(&secret, 1)).ok());
  ExpectNowhere("Quagmire");
  ExpectNowhere("quagmir");
  EXPECT_EQ(*catalog_->CountFacts(QueryOf(kept)), 360);
}

TEST_F(CatalogForget, AnUnknownScopeForgetsNothing) {
  const ScopeId scope = ScopeOf("anna");
  AddText(scope, "a");
  const std::vector<ScopeId> scopes = {scope, 999};
  EXPECT_EQ(catalog_->ForgetScopes(scopes).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(*catalog_->CountFacts(QueryOf(scope)), 1);
}

TEST_F(CatalogForget, AForeignReaderDelaysTheLastStepAndIsNamed) {
  const ScopeId scope = ScopeOf("anna");
  const std::string id = AddText(scope, "the password is Hippopotamus");
  {
    SQLite::Database reader(folder_.database().string(), SQLite::OPEN_READONLY);
    reader.exec("BEGIN");
    EXPECT_EQ(reader.execAndGet("SELECT count(*) FROM facts").getInt(), 1);
    const Status status = catalog_->ForgetFact(id).status();
    EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status.message();
    EXPECT_NE(status.message().find("another program"), std::string::npos) << status.message();
    EXPECT_EQ(catalog_->GetFact(id).status().code(), StatusCode::kNotFound);
    EXPECT_THAT(*catalog_->PendingErasures(), SizeIs(1));
  }
  // The next start finishes it.
  Open();
  ExpectNowhere("Hippopotamus");
  ExpectNowhere("hippopotamus");
}

TEST_F(CatalogForget, TheNextForgetFinishesWhatAReaderDelayed) {
  const ScopeId scope = ScopeOf("anna");
  const std::string id = AddText(scope, "the password is Hippopotamus");
  {
    SQLite::Database reader(folder_.database().string(), SQLite::OPEN_READONLY);
    reader.exec("BEGIN");
    reader.execAndGet("SELECT count(*) FROM facts").getInt();
    EXPECT_FALSE(catalog_->ForgetFact(id).ok());
  }
  EXPECT_EQ(catalog_->ForgetFact(id).status().code(), StatusCode::kNotFound);
  ExpectNowhere("Hippopotamus");
  ExpectNowhere("hippopotamus");
}

}  // namespace
}  // namespace inferscale::test
