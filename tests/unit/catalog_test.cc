
#include <gmock/gmock.h>

#include "support/catalog_fixture.h"

namespace inferscale::test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;
using testing::UnorderedElementsAre;

TEST_F(CatalogTest, ScopeIsMadeOnceAndNeedsAnOwner) {
  const ScopeId anna = ScopeOf("anna");
  EXPECT_EQ(ScopeOf("anna"), anna);
  EXPECT_NE(ScopeOf("ben"), anna);
  EXPECT_NE(ScopeOf("anna", "other"), anna);
  EXPECT_NE(InfoOf(anna).tag, 0u);
  EXPECT_NE(InfoOf(anna).tag, InfoOf(ScopeOf("ben")).tag);
  EXPECT_EQ(catalog_->EnsureScope(Scope()).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(catalog_->GetScope(12345).status().code(), StatusCode::kNotFound);
}

TEST_F(CatalogTest, FindScopesMatchesTheIdsGiven) {
  Scope both;
  both.user = "anna";
  both.agent = "cook";
  const ScopeId shared = catalog_->EnsureScope(both)->id;
  const ScopeId anna = ScopeOf("anna");
  ScopeOf("anna", "other");
  const auto ids = [&](const Scope& query) {
    std::vector<ScopeId> found;
    const auto listed = *catalog_->FindScopes(query);
    for (const ScopeInfo& info : listed) found.push_back(info.id);
    return found;
  };
  Scope query;
  EXPECT_THAT(ids(query), UnorderedElementsAre(shared, anna));
  query.user = "anna";
  EXPECT_THAT(ids(query), UnorderedElementsAre(shared, anna));
  query.agent = "cook";
  EXPECT_THAT(ids(query), ElementsAre(shared));
  query.agent = "' OR 1 --";
  EXPECT_THAT(ids(query), IsEmpty());
}

TEST_F(CatalogTest, AnImportedFactKeepsItsHistory) {
  NewFact fact = FactOf("Anna lives in Rome");
  HistoryEntry added;
  added.event = "ADD";
  added.new_text = "Anna lives in Bern";
  added.created_at_ms = added.updated_at_ms = 1000;
  HistoryEntry updated = added;
  updated.event = "UPDATE";
  updated.old_text = "Anna lives in Bern";
  updated.new_text = "Anna lives in Rome";
  updated.role = "user";
  updated.updated_at_ms = 2000;
  fact.history = {added, updated};
  const std::string id = Add(ScopeOf("anna"), {fact})[0];
  const std::vector<HistoryEntry> history = *catalog_->History(id);
  ASSERT_THAT(history, SizeIs(2));
  EXPECT_EQ(history[0].event, "ADD");
  EXPECT_EQ(history[0].new_text, "Anna lives in Bern");
  EXPECT_EQ(history[1].old_text, "Anna lives in Bern");
  EXPECT_EQ(history[1].role, "user");
  EXPECT_EQ(history[1].updated_at_ms, 2000);

  NewFact hostile = FactOf("something else");
  hostile.history = {added};
  hostile.history[0].event = "EAT";
  IngestBatch batch;
  batch.scope_id = ScopeOf("anna");
  batch.facts = {hostile};
  EXPECT_EQ(catalog_->Ingest(batch).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(CatalogTest, FactComesBackByteForByte) {
  NewFact fact =
      FactOf("  caf\u00e9 / cafe\u0301 \u05e9\u05dc\u05d5\u05dd 🎉'; DROP TABLE facts; --\n");
  fact.fact.name = "Ann\"a";
  fact.fact.role = "user";
  fact.fact.actor_id = "a'b";
  fact.fact.metadata_json = R"({"k":"v'\" \u0001","n":[1,2]})";
  fact.fact.event_time_ms = 123456;
  fact.fact.expiration_date = "2999-12-31";
  const std::string id = Add(ScopeOf("anna"), {fact})[0];
  Open();
  const Fact read = *catalog_->GetFact(id);
  EXPECT_EQ(read.text, fact.fact.text);
  EXPECT_EQ(read.name, fact.fact.name);
  EXPECT_EQ(read.role, "user");
  EXPECT_EQ(read.actor_id, "a'b");
  EXPECT_EQ(read.metadata_json, R"({"k":"v'\" \u0001","n":[1,2]})");
  EXPECT_EQ(read.event_time_ms, 123456);
  EXPECT_EQ(read.created_at_ms, now_ms_);
  EXPECT_EQ(read.updated_at_ms, now_ms_);
  EXPECT_EQ(read.expiration_date, "2999-12-31");
  EXPECT_EQ(read.version, 1);
}

TEST_F(CatalogTest, NulAndLongTextsAreKept) {
  const std::string with_nul("left\0right", 10);
  std::string long_text(1 << 20, 'x');
  for (std::size_t i = 0; i < long_text.size(); i += 7) long_text[i] = ' ';
  const auto ids = Add(ScopeOf("anna"), {FactOf(with_nul), FactOf(long_text)});
  EXPECT_EQ(catalog_->GetFact(ids[0])->text, with_nul);
  EXPECT_EQ(catalog_->GetFact(ids[1])->text, long_text);
  EXPECT_THAT(SearchIds(ScopeOf("anna"), "right"), ElementsAre(ids[0]));
}

TEST_F(CatalogTest, BadInputIsRefusedWholeAndSaysWhat) {
  const ScopeId scope = ScopeOf("anna");
  const auto refused = [&](NewFact fact, std::string_view said) {
    IngestBatch batch;
    batch.scope_id = scope;
    batch.facts = {FactOf("good"), std::move(fact)};
    const Status status = catalog_->Ingest(batch).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(said), std::string::npos) << status.message();
  };
  refused(FactOf("bad \xff"), "fact 1");
  refused(FactOf(""), "blank");
  refused(FactOf(" \u3000\n"), "blank");
  NewFact fact = FactOf("x");
  fact.fact.metadata_json = "[1]";
  refused(fact, "JSON object");
  fact.fact.metadata_json = R"({"a":)" + std::string(200, '[') + std::string(200, ']') + "}";
  refused(fact, "deeper");
  fact = FactOf("x");
  fact.fact.expiration_date = "2026-02-30";
  refused(fact, "expiration_date");
  fact = FactOf("x");
  fact.source_turn_indexes = {0};
  refused(fact, "outside");
  fact = FactOf("x");
  fact.embedding = {1.0F};
  refused(fact, "embedder");
  fact = FactOf("x");
  fact.fact.name = "\xc0\x80";
  refused(fact, "UTF-8");
  EXPECT_EQ(*catalog_->CountFacts(QueryOf(scope)), 0);

  Scope bad;
  bad.user = "\xff";
  EXPECT_EQ(catalog_->EnsureScope(bad).status().code(), StatusCode::kInvalidArgument);
  IngestBatch nowhere;
  nowhere.scope_id = 999;
  nowhere.facts = {FactOf("x")};
  EXPECT_EQ(catalog_->Ingest(nowhere).status().code(), StatusCode::kNotFound);
}

TEST_F(CatalogTest, EqualFactsOfOneScopeAreOne) {
  const ScopeId scope = ScopeOf("anna");
  IngestBatch batch;
  batch.scope_id = scope;
  batch.facts = {FactOf("Anna likes caf\u00e9s"), FactOf(" ANNA LIKES CAFE\u0301S\n"),
                 FactOf("other")};
  const IngestOutcome outcome = *catalog_->Ingest(batch);
  ASSERT_THAT(outcome.facts, SizeIs(3));
  EXPECT_TRUE(outcome.facts[0].added);
  EXPECT_FALSE(outcome.facts[1].added);
  EXPECT_EQ(outcome.facts[1].fact_id, outcome.facts[0].fact_id);
  EXPECT_EQ(InfoOf(scope).facts, 2);

  const std::uint64_t revision = InfoOf(scope).revision;
  EXPECT_EQ(AddText(scope, "anna likes caf\u00e9s"), outcome.facts[0].fact_id);
  EXPECT_EQ(InfoOf(scope).revision, revision) << "nothing changed";
  EXPECT_NE(AddText(ScopeOf("ben"), "Anna likes caf\u00e9s"), outcome.facts[0].fact_id);
  EXPECT_EQ(catalog_->GetFact(outcome.facts[0].fact_id)->text, "Anna likes caf\u00e9s");
}

TEST_F(CatalogTest, ADeletedFactCanBeAddedAgain) {
  const ScopeId scope = ScopeOf("anna");
  const std::string first = AddText(scope, "likes tea");
  ASSERT_TRUE(catalog_->DeleteFact(first).ok());
  EXPECT_NE(AddText(scope, "likes tea"), first);
}

TEST_F(CatalogTest, SupersededFactKeepsHistoryAndMayComeTrueAgain) {
  const ScopeId scope = ScopeOf("anna");
  const std::string paris = AddText(scope, "lives in Paris");
  NewFact newer = FactOf("lives in Rome");
  newer.supersedes = {paris, "no such fact"};
  const std::uint64_t epoch = InfoOf(scope).epoch;
  const std::string rome = Add(scope, {newer})[0];
  EXPECT_EQ(catalog_->GetFact(paris)->superseded_by, rome);
  EXPECT_EQ(InfoOf(scope).epoch, epoch);
  const auto history = *catalog_->History(paris);
  ASSERT_THAT(history, SizeIs(2));
  EXPECT_EQ(history[1].event, "SUPERSEDE");
  EXPECT_EQ(history[1].old_text, "lives in Paris");
  EXPECT_EQ(history[1].new_text, "lives in Rome");

  FactQuery query = QueryOf(scope);
  query.show_superseded = false;
  EXPECT_THAT(TextsOf(query), ElementsAre("lives in Rome"));
  EXPECT_THAT(TextsOf(QueryOf(scope)), SizeIs(2));

  newer = FactOf("lives in Paris");
  newer.supersedes = {rome};
  const std::string back = Add(scope, {newer})[0];
  EXPECT_NE(back, paris);
  EXPECT_THAT(TextsOf(query), ElementsAre("lives in Paris"));

  // Deleting a contradiction takes it back: Rome holds again.
  ASSERT_TRUE(catalog_->DeleteFact(back).ok());
  EXPECT_THAT(TextsOf(query), ElementsAre("lives in Rome"));
  EXPECT_EQ(catalog_->GetFact(paris)->superseded_by, rome);
}

TEST_F(CatalogTest, AFactOfAnotherScopeIsNotSuperseded) {
  const std::string other = AddText(ScopeOf("ben"), "lives in Paris");
  NewFact newer = FactOf("lives in Rome");
  newer.supersedes = {other};
  Add(ScopeOf("anna"), {newer});
  EXPECT_EQ(catalog_->GetFact(other)->superseded_by, "");
}

TEST_F(CatalogTest, UpdateReplacesTextEverywhereAtOnce) {
  const ScopeId scope = ScopeOf("anna");
  NewFact fact = FactOf("owns a bicycle");
  fact.embedding = {1.0F, 0.5F};
  const std::string id = Add(scope, {fact})[0];
  const std::string behind = AddText(scope, "rides daily");
  AddKv(id, KeyOf(1));
  AddKv(behind, KeyOf(2), {id});
  const ScopeInfo before = InfoOf(scope);

  now_ms_ += 1000;
  FactUpdate update;
  update.text = "owns a motorcycle";
  const Erasure erasure = *catalog_->UpdateFact(id, update);
  EXPECT_THAT(erasure.keys, UnorderedElementsAre(KeyOf(1), KeyOf(2)));
  EXPECT_EQ(erasure.scope_tag, before.tag);
  EXPECT_EQ(erasure.epoch, before.epoch + 1);
  EXPECT_FALSE(erasure.whole_scope);
  EXPECT_EQ(InfoOf(scope).epoch, before.epoch + 1);
  EXPECT_GT(InfoOf(scope).revision, before.revision);
  EXPECT_EQ(InfoOf(scope).facts, 2);
  EXPECT_FALSE(HasKv(id));
  EXPECT_FALSE(HasKv(behind));
  EXPECT_THAT(SearchIds(scope, "bicycle"), IsEmpty());
  EXPECT_THAT(SearchIds(scope, "motorcycle"), ElementsAre(id));
  EXPECT_THAT(*catalog_->LoadEmbeddings(scope, "embedder", 0), IsEmpty());
  const Fact read = *catalog_->GetFact(id);
  EXPECT_EQ(read.version, 2);
  EXPECT_EQ(read.updated_at_ms, now_ms_);
  EXPECT_EQ(read.created_at_ms, now_ms_ - 1000);
  const auto history = *catalog_->History(id);
  ASSERT_THAT(history, SizeIs(2));
  EXPECT_EQ(history[1].event, "UPDATE");
  EXPECT_EQ(history[1].old_text, "owns a bicycle");
  EXPECT_EQ(history[1].new_text, "owns a motorcycle");
}

TEST_F(CatalogTest, UpdateOfOtherFieldsKeepsTheVector) {
  const ScopeId scope = ScopeOf("anna");
  NewFact fact = FactOf("owns a bicycle");
  fact.embedding = {1.0F};
  fact.fact.expiration_date = "2030-01-01";
  const std::string id = Add(scope, {fact})[0];
  FactUpdate update;
  update.metadata_json = R"({"color":"red"})";
  update.expiration_date = "";
  update.name = "Anna";
  update.event_time_ms = 5;
  ASSERT_TRUE(catalog_->UpdateFact(id, update).ok());
  const Fact read = *catalog_->GetFact(id);
  EXPECT_EQ(read.metadata_json, R"({"color":"red"})");
  EXPECT_EQ(read.expiration_date, "");
  EXPECT_EQ(read.name, "Anna");
  EXPECT_EQ(read.event_time_ms, 5);
  EXPECT_THAT(*catalog_->LoadEmbeddings(scope, "embedder", 0), SizeIs(1));
  EXPECT_THAT(SearchIds(scope, "bicycle"), ElementsAre(id));
}

TEST_F(CatalogTest, UpdateRefusesNothingTheSameTextAndUnknownIds) {
  const ScopeId scope = ScopeOf("anna");
  const std::string id = AddText(scope, "a");
  const std::string other = AddText(scope, "b");
  FactUpdate update;
  EXPECT_EQ(catalog_->UpdateFact(id, update).status().code(), StatusCode::kInvalidArgument);
  update.text = "B ";
  const Status same = catalog_->UpdateFact(id, update).status();
  EXPECT_EQ(same.code(), StatusCode::kAlreadyExists);
  EXPECT_NE(same.message().find(other), std::string::npos);
  EXPECT_EQ(catalog_->UpdateFact("nobody", update).status().code(), StatusCode::kNotFound);
  update.text = "A";
  EXPECT_TRUE(catalog_->UpdateFact(id, update).ok()) << "its own other spelling";
}

TEST_F(CatalogTest, DeleteLeavesHistoryAndNothingElse) {
  const ScopeId scope = ScopeOf("anna");
  const std::string id = AddSaid(scope, "owns a cat");
  AddKv(id, KeyOf(1));
  const TurnId turn = catalog_->GetFact(id)->source_turns.at(0);
  const Erasure erasure = *catalog_->DeleteFact(id);
  EXPECT_THAT(erasure.keys, ElementsAre(KeyOf(1)));
  EXPECT_EQ(catalog_->GetFact(id).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(catalog_->DeleteFact(id).status().code(), StatusCode::kNotFound);
  EXPECT_THAT(SearchIds(scope, "cat"), IsEmpty());
  EXPECT_EQ(InfoOf(scope).facts, 0);
  const auto history = *catalog_->History(id);
  ASSERT_THAT(history, SizeIs(2));
  EXPECT_EQ(history[1].event, "DELETE");
  EXPECT_EQ(history[1].old_text, "owns a cat");
  EXPECT_FALSE(history[1].new_text.has_value());
  EXPECT_TRUE(history[1].is_deleted);
  EXPECT_THAT(*catalog_->GetTurns(std::span(&turn, 1)), SizeIs(1));
}

TEST_F(CatalogTest, ErasuresWaitUntilDone) {
  const ScopeId scope = ScopeOf("anna");
  const std::string id = AddText(scope, "a");
  AddKv(id, KeyOf(7));
  const Erasure erasure = *catalog_->DeleteFact(id);
  Open();
  const auto pending = *catalog_->PendingErasures();
  ASSERT_THAT(pending, SizeIs(1));
  EXPECT_EQ(pending[0].id, erasure.id);
  EXPECT_EQ(pending[0].epoch, erasure.epoch);
  EXPECT_EQ(pending[0].scope_tag, erasure.scope_tag);
  EXPECT_THAT(pending[0].keys, ElementsAre(KeyOf(7)));
  ASSERT_TRUE(catalog_->CompleteErasure(erasure.id).ok());
  EXPECT_THAT(*catalog_->PendingErasures(), IsEmpty());
}

TEST_F(CatalogTest, DeleteScopesEmptiesTheScope) {
  const ScopeId anna = ScopeOf("anna"), ben = ScopeOf("ben");
  IngestBatch batch;
  batch.scope_id = anna;
  batch.turns = {Turn{0, "user", "", "I like tea", 0}};
  batch.extract_later = true;
  Add(batch);
  const std::string id = AddText(anna, "a");
  AddText(anna, "b");
  const std::string kept = AddText(ben, "a");
  AddKv(id, KeyOf(1));
  const std::vector<ScopeId> scopes = {anna};
  const auto erasures = *catalog_->DeleteScopes(scopes);
  ASSERT_THAT(erasures, SizeIs(1));
  EXPECT_TRUE(erasures[0].whole_scope);
  EXPECT_THAT(erasures[0].keys, ElementsAre(KeyOf(1)));
  EXPECT_THAT(TextsOf(QueryOf(anna)), IsEmpty());
  EXPECT_EQ(InfoOf(anna).facts, 0);
  EXPECT_THAT(SearchIds(anna, "a b"), IsEmpty());
  EXPECT_THAT(*catalog_->PendingJobs("extract", 10), IsEmpty());
  EXPECT_TRUE(catalog_->History(id)->back().is_deleted);
  EXPECT_TRUE(catalog_->GetFact(kept).ok());
}

TEST_F(CatalogTest, ListIsNewestFirstPagedAndNeverEverybody) {
  const ScopeId scope = ScopeOf("anna");
  for (int i = 0; i < 5; ++i) {
    now_ms_ += 10;
    AddText(scope, "fact " + std::to_string(i));
  }
  const ScopeId ben = ScopeOf("ben");
  AddText(ben, "ben's");
  FactQuery query = QueryOf(scope);
  query.limit = 2;
  EXPECT_THAT(TextsOf(query), ElementsAre("fact 4", "fact 3"));
  query.offset = 4;
  EXPECT_THAT(TextsOf(query), ElementsAre("fact 0"));
  EXPECT_EQ(*catalog_->CountFacts(query), 5);
  query.offset = -1;
  EXPECT_FALSE(catalog_->ListFacts(query).ok());
  query = FactQuery();
  EXPECT_THAT(TextsOf(query), IsEmpty());
  EXPECT_EQ(*catalog_->CountFacts(query), 0);
  EXPECT_THAT(*catalog_->MatchingRows(query), IsEmpty());
  query.scopes = {scope, ben};
  EXPECT_EQ(*catalog_->CountFacts(query), 6);
  const auto oldest = *catalog_->OldestFacts(scope, 2, WhichFacts::kAll);
  ASSERT_THAT(oldest, SizeIs(2));
  EXPECT_EQ(oldest[0].text, "fact 0");
  EXPECT_EQ(oldest[1].text, "fact 1");
}

TEST_F(CatalogTest, ExpiredFactsAreHiddenButReadableById) {
  now_ms_ = 1'795'996'800'000;  // 2026-11-30T00:00:00Z
  const ScopeId scope = ScopeOf("anna");
  NewFact old = FactOf("coupon"), today = FactOf("party"), open = FactOf("always");
  old.fact.expiration_date = "2026-11-29";
  today.fact.expiration_date = "2026-11-30";
  const auto ids = Add(scope, {old, today, open});
  EXPECT_THAT(TextsOf(QueryOf(scope)), UnorderedElementsAre("party", "always"));
  EXPECT_THAT(*catalog_->MatchingRows(QueryOf(scope)), SizeIs(2));
  FactQuery all = QueryOf(scope);
  all.show_expired = true;
  EXPECT_THAT(TextsOf(all), SizeIs(3));
  EXPECT_TRUE(catalog_->GetFact(ids[0]).ok());
  now_ms_ += 24 * 3600 * 1000;
  EXPECT_THAT(TextsOf(QueryOf(scope)), ElementsAre("always"));
}

TEST_F(CatalogTest, TurnsAreKeptInOrder) {
  IngestBatch batch;
  batch.scope_id = ScopeOf("anna");
  for (int i = 0; i < 6; ++i) {
    batch.turns.push_back(
        Turn{0, i % 2 ? "assistant" : "user", "Anna", "turn " + std::to_string(i), 7});
  }
  const auto turns = catalog_->Ingest(batch)->turns;
  const auto before = *catalog_->TurnsBefore(batch.scope_id, turns[5], 2);
  ASSERT_THAT(before, SizeIs(2));
  EXPECT_EQ(before[0].content, "turn 3");
  EXPECT_EQ(before[1].content, "turn 4");
  EXPECT_EQ(before[1].time_ms, 7);
  EXPECT_THAT(*catalog_->TurnsBefore(ScopeOf("ben"), turns[5], 2), IsEmpty());
  const std::vector<TurnId> wanted = {turns[3], 9999, turns[0]};
  const auto read = *catalog_->GetTurns(wanted);
  ASSERT_THAT(read, SizeIs(2));
  EXPECT_EQ(read[0].content, "turn 3");
  EXPECT_EQ(read[1].content, "turn 0");
}

TEST_F(CatalogTest, JobsSurviveAndEndWithTheirResult) {
  const ScopeId scope = ScopeOf("anna");
  IngestBatch batch;
  batch.scope_id = scope;
  batch.turns = {Turn{0, "user", "", "I like tea", 0}, Turn{0, "user", "", "and cake", 0}};
  batch.extract_later = true;
  batch.job_payload_json = R"({"mode":"llm"})";
  const IngestOutcome queued = *catalog_->Ingest(batch);
  Open();
  auto jobs = *catalog_->PendingJobs("extract", 10);
  ASSERT_THAT(jobs, SizeIs(1));
  EXPECT_EQ(jobs[0].id, *queued.job_id);
  EXPECT_EQ(jobs[0].turns, queued.turns);
  EXPECT_EQ(jobs[0].payload_json, R"({"mode":"llm"})");
  EXPECT_THAT(*catalog_->PendingJobs("other", 10), IsEmpty());

  ASSERT_TRUE(catalog_->FailJob(jobs[0].id, "endpoint down", false).ok());
  jobs = *catalog_->PendingJobs("extract", 10);
  ASSERT_THAT(jobs, SizeIs(1));
  EXPECT_EQ(jobs[0].attempts, 1);

  IngestBatch result;
  result.scope_id = scope;
  result.completes_job = jobs[0].id;
  result.facts = {FactOf("likes tea")};
  result.facts[0].fact.source_turns = {queued.turns[0]};
  const std::string id = Add(result)[0];
  EXPECT_THAT(catalog_->GetFact(id)->source_turns, ElementsAre(queued.turns[0]));
  EXPECT_THAT(*catalog_->PendingJobs("extract", 10), IsEmpty());
  EXPECT_EQ(catalog_->Ingest(result).status().code(), StatusCode::kFailedPrecondition)
      << "a job ends once";
}

TEST_F(CatalogTest, FinallyFailedJobIsNotPending) {
  IngestBatch batch;
  batch.scope_id = ScopeOf("anna");
  batch.turns = {Turn{0, "user", "", "x", 0}};
  batch.extract_later = true;
  const auto job = catalog_->Ingest(batch)->job_id;
  ASSERT_TRUE(catalog_->FailJob(*job, "never \xff", true).ok());
  EXPECT_THAT(*catalog_->PendingJobs("extract", 10), IsEmpty());
  ASSERT_TRUE(catalog_->CompleteJob(*job).ok());
}

TEST_F(CatalogTest, DeletedFactsDoNotComeBackFromTheirTurns) {
  const ScopeId scope = ScopeOf("anna");
  const std::string id = AddSaid(scope, "I like tea");
  const std::vector<TurnId> turns = catalog_->GetFact(id)->source_turns;
  IngestBatch later;
  later.scope_id = scope;
  later.turns = {Turn{0, "user", "", "and cake", 0}};
  later.extract_later = true;
  const IngestOutcome queued = *catalog_->Ingest(later);
  NewFact cake = FactOf("likes cake");
  cake.fact.source_turns = queued.turns;
  const std::string cake_id = Add(scope, {cake})[0];
  ASSERT_THAT(*catalog_->PendingJobs("extract", 10), SizeIs(1));
  ASSERT_TRUE(catalog_->DeleteFact(cake_id).ok());
  EXPECT_THAT(*catalog_->PendingJobs("extract", 10), IsEmpty()) << "its only turn is used up";

  IngestBatch result;
  result.scope_id = scope;
  result.completes_job = queued.job_id;
  result.facts = {cake};
  EXPECT_FALSE(catalog_->Ingest(result).ok());
  EXPECT_THAT(TextsOf(QueryOf(scope)), ElementsAre("I like tea"));
}

TEST_F(CatalogTest, MetaAndTenantSecretsStay) {
  EXPECT_EQ(*catalog_->GetMeta("model"), "");
  ASSERT_TRUE(catalog_->SetMeta("model", "a'b").ok());
  EXPECT_FALSE(catalog_->SetMeta("catalog.scrub", "1").ok());
  const auto secret = *catalog_->TenantSecret("t");
  EXPECT_THAT(secret, SizeIs(32));
  Open();
  EXPECT_EQ(*catalog_->GetMeta("model"), "a'b");
  EXPECT_EQ(*catalog_->TenantSecret("t"), secret);
  EXPECT_NE(*catalog_->TenantSecret("u"), secret);
}

}  // namespace
}  // namespace inferscale::test
