#ifndef INFERSCALE_CATALOG_READER_POOL_H_
#define INFERSCALE_CATALOG_READER_POOL_H_

#include <condition_variable>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <mutex>
#include <vector>

#include "catalog/connection.h"

namespace inferscale::catalog {

/// A few connections for reading, opened when first needed. Thread-safe.
class ReaderPool {
 public:
  ReaderPool(std::filesystem::path file, std::size_t size) : file_(std::move(file)), size_(size) {}

  /// A connection for one thread until it dies. Waits for a free one; throws SQLite::Exception.
  class Lease {
   public:
    explicit Lease(ReaderPool& pool) : pool_(pool), connection_(pool.Take()) {}
    ~Lease() { pool_.Give(std::move(connection_)); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    Connection& connection() { return *connection_; }

   private:
    ReaderPool& pool_;
    std::unique_ptr<Connection> connection_;
  };

  /// Waits until nobody reads and keeps readers out until it dies: a snapshot held open keeps old
  /// pages in the write-ahead log.
  class Pause {
   public:
    explicit Pause(ReaderPool& pool);
    ~Pause();
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    ReaderPool& pool_;
  };

 private:
  std::unique_ptr<Connection> Take();
  void Give(std::unique_ptr<Connection> connection);

  const std::filesystem::path file_;
  const std::size_t size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Connection>> idle_;
  std::size_t in_use_ = 0;
  int pauses_ = 0;
};

}  // namespace inferscale::catalog

#endif  // INFERSCALE_CATALOG_READER_POOL_H_
