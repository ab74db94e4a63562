#include "inferscale/kv_store.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <list>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "kv/block_folder.h"
#include "kv/block_format.h"
#include "kv/file_index.h"
#include "kv/host_tier.h"

namespace inferscale {

// Two mutexes. `directory_mutex` guards everything in memory and is never held during I/O.
// `names_mutex` makes each change of file names (rename, unlink) one step with the change of the
// index that goes with it; content is read, written and synced without it. `names_mutex` is taken
// first.
struct KvStore::Impl {
  // A Put that has begun. Erasures mark it, so that it does not publish what they have removed.
  struct Write {
    KvKey key;
    std::uint64_t scope_tag = 0;
    // In memory from before: a fence that came since keeps what is stored.
    bool is_stored = false;
    bool erased = false;
    bool fits = false;  // what fails now may succeed later
  };
  using Writes = std::list<Write>;

  Impl(KvStoreOptions options_in, std::unique_ptr<BlockFolder> folder_in)
      : options(std::move(options_in)),
        fingerprint_prefix(FingerprintPrefix(options.fingerprint)),
        folder(std::move(folder_in)),
        host(options.host_budget_bytes),
        index(fingerprint_prefix) {}

  Status ListFiles();
  Status Put(std::shared_ptr<const KvBlock> block);
  Status WriteFile(const KvBlock& block, Writes::iterator write);
  Status PublishFile(const KvBlock& block, Writes::iterator write,
                     const std::filesystem::path& temporary, std::int64_t file_bytes);
  void FileLater();
  bool FileOldest(std::unique_lock<std::mutex>& lock);
  void StopFiling();
  Result<std::shared_ptr<const KvBlock>> Acquire(const KvKey& key);
  Result<std::shared_ptr<const KvBlock>> Load(const BlockFile& file);
  Status Erase(std::span<const KvKey> keys);
  Status EraseScope(std::uint64_t scope_tag, std::uint64_t epoch);

  // With directory_mutex held.
  void StartFiling();
  bool IsFenced(std::uint64_t scope_tag, std::uint64_t epoch) const {
    const auto fence = fences.find(scope_tag);
    return fence != fences.end() && epoch < fence->second;
  }
  void RaiseFence(std::uint64_t scope_tag, std::uint64_t epoch) {
    std::uint64_t& fence = fences[scope_tag];
    fence = std::max(fence, epoch);
  }
  template <typename Predicate>
  void MarkErased(Predicate matches) {
    for (Write& write : writes) write.erased = write.erased || matches(write);
  }
  template <typename Predicate>
  void WaitForErasedWrites(std::unique_lock<std::mutex>& lock, Predicate matches) {
    write_finished.wait(lock, [&] {
      return std::none_of(writes.begin(), writes.end(),
                          [&](const Write& write) { return write.erased && matches(write); });
    });
  }

  // With names_mutex held.
  void EvictFiles();

  const KvStoreOptions options;
  const std::uint64_t fingerprint_prefix;
  const std::unique_ptr<BlockFolder> folder;  // null: no file tier

  std::mutex names_mutex;
  mutable std::mutex directory_mutex;
  HostTier host;
  FileIndex index;
  std::int64_t reserved_bytes = 0;  // of files being written
  Writes writes;
  std::condition_variable write_finished;
  std::unordered_set<KvKey> loading;
  std::condition_variable load_finished;
  std::vector<BlockFile> unremoved;  // erased files whose removal failed; another Erase tries again
  std::unordered_map<std::uint64_t, std::uint64_t> fences;
  KvStoreStats counters;
  // Writes what is in memory alone. It runs from the first error of the disk on: only a thread of
  // the store's own does it while an engine is idle, and lets no engine's step wait for a disk.
  std::thread filer;
  bool filing_stopped = false;
  std::condition_variable filing_changed;
  std::mutex join_mutex;  // of those who stop it; taken alone
};

namespace {

Status Erased() {
  return FailedPrecondition(
      "the KV block was not stored: its fact or scope has been erased since it was asked for");
}

}  // namespace

Status KvStore::Impl::ListFiles() {
  INFERSCALE_ASSIGN_OR_RETURN(std::vector<BlockFolder::Listed> files, folder->List());
  std::sort(files.begin(), files.end(),
            [](const auto& a, const auto& b) { return a.modified_ns < b.modified_ns; });
  for (const BlockFolder::Listed& file : files) index.Add(file.id, file.bytes);
  const std::lock_guard names(names_mutex);
  EvictFiles();
  return OkStatus();
}

void KvStore::Impl::EvictFiles() {
  std::vector<BlockFile> victims;
  {
    const std::lock_guard lock(directory_mutex);
    victims =
        index.RemoveToBudget(std::max<std::int64_t>(0, options.file_budget_bytes - reserved_bytes));
  }
  std::vector<BlockFile> kept;
  for (const BlockFile& victim : victims) {
    // What cannot be removed still takes its place, and is found by an erasure.
    if (!folder->Remove(victim.id).ok()) kept.push_back(victim);
  }
  const std::lock_guard lock(directory_mutex);
  counters.evictions_file += static_cast<std::int64_t>(victims.size() - kept.size());
  for (auto victim = kept.rbegin(); victim != kept.rend(); ++victim) {
    index.AddOldest(victim->id, victim->bytes);
  }
}

Status KvStore::Impl::Put(std::shared_ptr<const KvBlock> block) {
  if (block == nullptr) return InvalidArgument("no KV block was given");
  const KvBlockInfo& info = block->info();
  if (info.fingerprint != options.fingerprint) {
    return FailedPrecondition("the KV block belongs to another model than the store does");
  }
  std::unique_lock lock(directory_mutex);
  if (IsFenced(info.scope_tag, info.epoch)) return Erased();
  host.Insert(block);
  if (folder == nullptr) {
    if (host.Contains(info.key)) return OkStatus();
    return ResourceExhausted("the KV block has " + std::to_string(block->MemorySizeBytes()) +
                             " bytes and does not fit in the host budget of " +
                             std::to_string(options.host_budget_bytes));
  }
  const auto write = writes.insert(writes.end(), Write{info.key, info.scope_tag});
  lock.unlock();
  Status status = WriteFile(*block, write);
  lock.lock();
  const bool erased = write->erased || IsFenced(info.scope_tag, info.epoch);
  const bool fits = write->fits;
  writes.erase(write);
  write_finished.notify_all();
  if (status.ok()) {
    host.MarkFiled(*block);
  } else if (erased) {
    // Fenced while its file was written: left in memory it would count as stored until the process
    // ends, and then be nowhere. After an error of the disk memory is the best place there is.
    host.EraseExactly(*block);
  } else if (fits) {
    host.MarkUnfiled(*block);
    StartFiling();
  }
  return status;
}

void KvStore::Impl::StartFiling() {
  filing_changed.notify_all();
  if (filer.joinable() || filing_stopped) return;
  try {
    filer = std::thread([this] { FileLater(); });
  } catch (const std::system_error&) {
    // No thread to be had: the next error of the disk asks for one again.
  }
}

void KvStore::Impl::StopFiling() {
  {
    const std::lock_guard lock(directory_mutex);
    filing_stopped = true;
  }
  filing_changed.notify_all();
  const std::lock_guard joining(join_mutex);  // others wait for it too
  if (filer.joinable()) filer.join();
}

void KvStore::Impl::FileLater() {
  const std::chrono::milliseconds pause(options.file_again_ms);
  const auto stopped = [this] { return filing_stopped; };
  std::unique_lock lock(directory_mutex);
  for (;;) {
    filing_changed.wait(lock, [&] { return stopped() || host.OldestUnfiled() != nullptr; });
    // A disk that has just been full is still full; one attempt a pause tells when it is not.
    if (filing_changed.wait_for(lock, pause, stopped)) return;
    while (!stopped() && FileOldest(lock)) {
    }
  }
}

// Whether it is worthwhile to go on at once.
bool KvStore::Impl::FileOldest(std::unique_lock<std::mutex>& lock) {
  const std::shared_ptr<const KvBlock> block = host.OldestUnfiled();
  if (block == nullptr) return false;
  const KvBlockInfo& info = block->info();
  const auto write = writes.insert(writes.end(), Write{info.key, info.scope_tag, true});
  lock.unlock();
  Status status;
  try {
    status = WriteFile(*block, write);
  } catch (const std::exception& error) {  // of memory: it would end the process
    status = ResourceExhausted(error.what());
  }
  lock.lock();
  const bool erased = write->erased;
  writes.erase(write);
  write_finished.notify_all();
  if (erased) return true;
  if (status.ok()) {
    host.MarkFiled(*block);
  } else {
    host.MarkUnfiled(*block);  // behind the others: one that is too large for the disk stops none
  }
  return status.ok();
}

Status KvStore::Impl::WriteFile(const KvBlock& block, Writes::iterator write) {
  const std::vector<std::uint8_t> header = SerializeBlockHeader(block.info(), block.payload());
  const auto file_bytes = static_cast<std::int64_t>(header.size() + block.payload().size());
  if (file_bytes > options.file_budget_bytes) {
    return ResourceExhausted("the KV block's file of " + std::to_string(file_bytes) +
                             " bytes does not fit in the file budget of " +
                             std::to_string(options.file_budget_bytes));
  }
  write->fits = true;
  {
    const std::lock_guard names(names_mutex);
    {
      const std::lock_guard lock(directory_mutex);
      reserved_bytes += file_bytes;
    }
    EvictFiles();
  }
  auto temporary = folder->WriteTemporary(header, block.payload());
  Status status = temporary.status();
  if (status.ok()) {
    status = PublishFile(block, write, *temporary, file_bytes);
    if (!status.ok()) BlockFolder::DiscardTemporary(*temporary);
  }
  const std::lock_guard lock(directory_mutex);
  reserved_bytes -= file_bytes;
  return status;
}

Status KvStore::Impl::PublishFile(const KvBlock& block, Writes::iterator write,
                                  const std::filesystem::path& temporary, std::int64_t file_bytes) {
  const KvBlockInfo& info = block.info();
  const BlockFileId id{fingerprint_prefix, info.scope_tag, info.key};
  const std::lock_guard names(names_mutex);
  {
    const std::lock_guard lock(directory_mutex);
    const bool fenced = !write->is_stored && IsFenced(info.scope_tag, info.epoch);
    if (write->erased || fenced) return Erased();
  }
  INFERSCALE_RETURN_IF_ERROR(folder->Publish(temporary, id));
  const std::lock_guard lock(directory_mutex);
  index.Add(id, file_bytes);
  return OkStatus();
}

Result<std::shared_ptr<const KvBlock>> KvStore::Impl::Acquire(const KvKey& key) {
  std::unique_lock lock(directory_mutex);
  std::optional<BlockFile> file;
  for (;;) {
    if (std::shared_ptr<const KvBlock> block = host.Pin(key)) {
      ++counters.hits_host;
      const auto touch = index.Touch(key, FileIndex::Clock::now());
      lock.unlock();
      if (touch) folder->Touch(*touch);
      return block;
    }
    file = index.Find(key);
    if (!file) {
      ++counters.misses;
      return NotFound("the KV block is not in the store");
    }
    if (loading.insert(key).second) break;
    load_finished.wait(lock);
  }
  const auto touch = index.Touch(key, FileIndex::Clock::now());
  lock.unlock();
  if (touch) folder->Touch(*touch);
  auto block = Load(*file);
  lock.lock();
  loading.erase(key);
  load_finished.notify_all();
  // An erasure, eviction or Put since then has the last word on what this key holds.
  if (block.ok()) {
    const std::optional<BlockFile> now = index.Find(key);
    if (now && now->serial == file->serial) {
      host.InsertPinned(*block);
      ++counters.hits_file;
      return block;
    }
    if (std::shared_ptr<const KvBlock> newer = host.Pin(key)) {
      ++counters.hits_host;
      return newer;
    }
    block = NotFound("the KV block has been removed while it was loaded");
  }
  ++counters.misses;
  return block;
}

Result<std::shared_ptr<const KvBlock>> KvStore::Impl::Load(const BlockFile& file) {
  auto block = folder->Load(file.id, options.fingerprint);
  const StatusCode code = block.status().code();
  if (code != StatusCode::kDataLoss && code != StatusCode::kNotFound) return block;
  const std::lock_guard names(names_mutex);
  bool removed = false;
  {
    const std::lock_guard lock(directory_mutex);
    removed = index.Remove(file);
    if (removed && code == StatusCode::kDataLoss) ++counters.corrupt;
  }
  // Unless it has been replaced by a good one meanwhile.
  if (removed && code == StatusCode::kDataLoss && !folder->Remove(file.id).ok()) {
    const std::lock_guard lock(directory_mutex);
    unremoved.push_back(file);
  }
  return block;
}

Status KvStore::Impl::Erase(std::span<const KvKey> keys) {
  const std::unordered_set<KvKey> wanted(keys.begin(), keys.end());
  const auto matches = [&](const auto& item) { return wanted.contains(item.key); };
  std::vector<BlockFileId> removed;
  Status result;
  if (folder != nullptr) {
    const std::lock_guard names(names_mutex);
    std::vector<BlockFile> files;
    {
      const std::lock_guard lock(directory_mutex);
      MarkErased(matches);
      for (const KvKey& key : wanted) {
        host.Erase(key);
        const std::vector<BlockFile> of_key = index.RemoveKey(key);
        files.insert(files.end(), of_key.begin(), of_key.end());
      }
      const auto retried = std::stable_partition(
          unremoved.begin(), unremoved.end(), [&](const auto& file) { return !matches(file.id); });
      files.insert(files.end(), retried, unremoved.end());
      unremoved.erase(retried, unremoved.end());
    }
    for (const BlockFile& file : files) {
      Status status = folder->Remove(file.id);
      removed.push_back(file.id);
      if (status.ok()) continue;
      if (result.ok()) result = std::move(status);
      const std::lock_guard lock(directory_mutex);
      unremoved.push_back(file);
    }
  }
  {
    std::unique_lock lock(directory_mutex);
    if (folder == nullptr) {
      for (const KvKey& key : wanted) host.Erase(key);
    }
    // Once this returns, not even a temporary file holds the blocks.
    WaitForErasedWrites(lock, matches);
  }
  if (folder != nullptr && result.ok()) result = folder->SyncRemovals(removed);
  return result;
}

Status KvStore::Impl::EraseScope(std::uint64_t scope_tag, std::uint64_t epoch) {
  const auto matches = [&](const Write& write) { return write.scope_tag == scope_tag; };
  const std::lock_guard names(names_mutex);
  std::unique_lock lock(directory_mutex);
  RaiseFence(scope_tag, epoch);
  host.EraseScope(scope_tag);
  if (folder == nullptr) return OkStatus();
  MarkErased(matches);
  index.RemoveScope(scope_tag);
  lock.unlock();
  Status status = folder->RemoveScope(scope_tag);
  lock.lock();
  if (status.ok()) {
    std::erase_if(unremoved, [&](const auto& file) { return file.id.scope_tag == scope_tag; });
  }
  return status;
}

Result<std::unique_ptr<KvStore>> KvStore::Open(KvStoreOptions options) {
  if (options.host_budget_bytes < 0 || options.file_budget_bytes < 0 || options.file_again_ms < 1) {
    return InvalidArgument("the KV store's budgets must not be negative, its pause positive");
  }
  std::unique_ptr<BlockFolder> folder;
  if (!options.folder.empty()) {
    INFERSCALE_ASSIGN_OR_RETURN(folder, BlockFolder::Open(options.folder));
  }
  auto impl = std::make_unique<Impl>(std::move(options), std::move(folder));
  if (impl->folder != nullptr) INFERSCALE_RETURN_IF_ERROR(impl->ListFiles());
  return std::unique_ptr<KvStore>(new KvStore(std::move(impl)));
}

KvStore::KvStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
KvStore::~KvStore() { impl_->StopFiling(); }

void KvStore::StopFiling() { impl_->StopFiling(); }

Status KvStore::Put(std::shared_ptr<const KvBlock> block) { return impl_->Put(std::move(block)); }

bool KvStore::CanHold(const KvBlock& block) const {
  const KvStoreOptions& options = impl_->options;
  if (std::cmp_less_equal(block.MemorySizeBytes(), options.host_budget_bytes)) return true;
  if (impl_->folder == nullptr) return false;
  const std::size_t file_bytes =
      SerializeBlockHeader(block.info(), block.payload()).size() + block.payload().size();
  return std::cmp_less_equal(file_bytes, options.file_budget_bytes);
}

Result<KvStore::Pin> KvStore::Acquire(const KvKey& key) {
  INFERSCALE_ASSIGN_OR_RETURN(std::shared_ptr<const KvBlock> block, impl_->Acquire(key));
  Pin pin;
  pin.store_ = impl_;
  pin.block_ = std::move(block);
  return pin;
}

std::vector<KvTier> KvStore::Presence(std::span<const KvKey> keys) const {
  std::vector<KvTier> tiers;
  tiers.reserve(keys.size());
  const std::lock_guard lock(impl_->directory_mutex);
  for (const KvKey& key : keys) {
    tiers.push_back(impl_->host.Contains(key) ? KvTier::kHost
                    : impl_->index.Find(key)  ? KvTier::kFile
                                              : KvTier::kNone);
  }
  return tiers;
}

Status KvStore::Erase(std::span<const KvKey> keys) { return impl_->Erase(keys); }

Status KvStore::EraseScope(std::uint64_t scope_tag, std::uint64_t epoch) {
  INFERSCALE_RETURN_IF_ERROR(impl_->EraseScope(scope_tag, epoch));
  std::unique_lock lock(impl_->directory_mutex);
  impl_->WaitForErasedWrites(
      lock, [&](const Impl::Write& write) { return write.scope_tag == scope_tag; });
  return OkStatus();
}

void KvStore::FenceScope(std::uint64_t scope_tag, std::uint64_t epoch) {
  const std::lock_guard lock(impl_->directory_mutex);
  impl_->RaiseFence(scope_tag, epoch);
}

KvStoreStats KvStore::Stats() const {
  const std::lock_guard lock(impl_->directory_mutex);
  KvStoreStats stats = impl_->counters;
  stats.host_blocks = impl_->host.blocks();
  stats.host_bytes = impl_->host.bytes();
  stats.pinned_blocks = impl_->host.pinned_blocks();
  stats.evictions_host = impl_->host.evictions();
  stats.file_blocks = impl_->index.files();
  stats.file_bytes = impl_->index.bytes();
  return stats;
}

std::int64_t KvStore::BytesOf(std::span<const std::uint64_t> scope_tags) const {
  const std::lock_guard lock(impl_->directory_mutex);
  std::int64_t bytes = 0;
  for (const std::uint64_t tag : scope_tags) bytes += impl_->index.BytesOf(tag);
  return bytes;
}

KvStore::Pin& KvStore::Pin::operator=(Pin&& other) noexcept {
  if (this != &other) {
    Pin old;
    old.store_ = std::move(store_);
    old.block_ = std::move(block_);
    store_ = std::move(other.store_);
    block_ = std::move(other.block_);
  }
  return *this;
}

KvStore::Pin::~Pin() {
  if (block_ == nullptr) return;
  const std::lock_guard lock(store_->directory_mutex);
  store_->host.Unpin(*block_);
}

}  // namespace inferscale
