// Events: what became of batches, read from jobs and facts.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/catalog_fixture.h"

namespace inferscale {
namespace {

using State = EventInfo::State;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class CatalogEvents : public test::CatalogTest {
 protected:
  /// Queues the extraction of one turn and returns its job.
  std::int64_t Queue(ScopeId scope, const std::string& event) {
    IngestBatch batch;
    batch.scope_id = scope;
    batch.turns = {{0, "user", "", "text of " + event, 0}};
    batch.extract_later = true;
    batch.event_id = event;
    const Result<IngestOutcome> outcome = catalog_->Ingest(batch);
    EXPECT_TRUE(outcome.ok()) << outcome.status().ToString();
    turns_ = outcome->turns;
    return outcome->job_id.value_or(0);
  }
  std::string Finish(ScopeId scope, std::int64_t job, const std::string& text) {
    IngestBatch batch;
    batch.scope_id = scope;
    batch.completes_job = job;
    batch.facts = {test::FactOf(text)};
    batch.facts[0].fact.source_turns = turns_;
    const auto ids = Add(batch);
    return ids.empty() ? "" : ids[0];
  }
  EventInfo Event(const std::string& id) {
    const Result<EventInfo> event = catalog_->GetEvent(id);
    EXPECT_TRUE(event.ok()) << event.status().ToString();
    return event.ok() ? *event : EventInfo();
  }

  std::vector<TurnId> turns_;
};

TEST_F(CatalogEvents, AnEventFollowsItsJob) {
  const ScopeId scope = ScopeOf("anna");
  const std::int64_t first = Queue(scope, "one");
  const std::vector<TurnId> first_turns = turns_;
  Queue(scope, "two");
  EXPECT_EQ(Event("one").state, State::kRunning);
  EXPECT_EQ(Event("two").state, State::kPending);
  ASSERT_TRUE(catalog_->FailJob(first, "busy", false).ok());
  EXPECT_EQ(Event("one").state, State::kRunning);
  EXPECT_EQ(Event("one").error, "busy");
  Open();
  turns_ = first_turns;
  const std::string id = Finish(scope, first, "a fact");
  EXPECT_EQ(Event("one").state, State::kSucceeded);
  EXPECT_THAT(Event("one").fact_ids, ElementsAre(id));
  EXPECT_EQ(Event("one").scope_id, scope);
  EXPECT_EQ(Event("one").tenant, "default");
  EXPECT_EQ(Event("two").state, State::kRunning);
}

TEST_F(CatalogEvents, AJobGivenUpIsAFailedEvent) {
  const std::int64_t job = Queue(ScopeOf("anna"), "one");
  ASSERT_TRUE(catalog_->FailJob(job, "the model refuses", true).ok());
  EXPECT_EQ(Event("one").state, State::kFailed);
  EXPECT_EQ(Event("one").error, "the model refuses");
  EXPECT_THAT(Event("one").fact_ids, IsEmpty());
}

TEST_F(CatalogEvents, WhatWasKnownBeforeIsNoResult) {
  const ScopeId scope = ScopeOf("anna");
  AddSaid(scope, "a fact");
  const std::int64_t job = Queue(scope, "one");
  Finish(scope, job, "A FACT");
  EXPECT_EQ(Event("one").state, State::kSucceeded);
  EXPECT_THAT(Event("one").fact_ids, IsEmpty());
}

TEST_F(CatalogEvents, AForgottenOwnerTakesItsEventsAlong) {
  const ScopeId scope = ScopeOf("anna");
  Queue(scope, "one");
  ASSERT_TRUE(catalog_->DeleteScopes(std::span(&scope, 1)).ok());
  EXPECT_EQ(Event("one").state, State::kSucceeded);
  ASSERT_TRUE(catalog_->ForgetScopes(std::span(&scope, 1)).ok());
  EXPECT_EQ(catalog_->GetEvent("one").status().code(), StatusCode::kNotFound);
}

TEST_F(CatalogEvents, OldEventsGoUnlessTheirWorkIsStillToBeDone) {
  const ScopeId scope = ScopeOf("anna");
  Queue(scope, "pending");
  ASSERT_TRUE(catalog_->RecordEvent("old", "default", "DELETE_ALL").ok());
  now_ms_ += 31LL * 24 * 3600 * 1000;
  ASSERT_TRUE(catalog_->RecordEvent("new", "default", "DELETE_ALL").ok());
  EXPECT_EQ(catalog_->GetEvent("old").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(Event("pending").state, State::kRunning);
  EXPECT_EQ(Event("new").state, State::kSucceeded);
}

TEST_F(CatalogEvents, ABatchThatFailsLeavesNoEvent) {
  const ScopeId scope = ScopeOf("anna");
  Queue(scope, "one");
  IngestBatch batch;
  batch.scope_id = scope;
  batch.turns = {{0, "user", "", "x", 0}};
  batch.event_id = "one";  // taken
  EXPECT_FALSE(catalog_->Ingest(batch).ok());
  batch.event_id = "two";
  batch.completes_job = 12345;
  EXPECT_FALSE(catalog_->Ingest(batch).ok());
  EXPECT_EQ(catalog_->GetEvent("two").status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace inferscale
