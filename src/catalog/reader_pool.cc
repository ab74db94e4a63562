#include "catalog/reader_pool.h"

#include <utility>

namespace inferscale::catalog {

std::unique_ptr<Connection> ReaderPool::Take() {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return pauses_ == 0 && in_use_ < size_; });
    ++in_use_;
    if (!idle_.empty()) {
      auto connection = std::move(idle_.back());
      idle_.pop_back();
      return connection;
    }
  }
  try {
    return std::make_unique<Connection>(file_, Connection::Access::kRead);
  } catch (...) {
    Give(nullptr);
    throw;
  }
}

void ReaderPool::Give(std::unique_ptr<Connection> connection) {
  {
    const std::lock_guard lock(mutex_);
    --in_use_;
    if (connection != nullptr) idle_.push_back(std::move(connection));
  }
  changed_.notify_all();
}

ReaderPool::Pause::Pause(ReaderPool& pool) : pool_(pool) {
  std::unique_lock lock(pool_.mutex_);
  ++pool_.pauses_;
  pool_.changed_.wait(lock, [&] { return pool_.in_use_ == 0; });
}

ReaderPool::Pause::~Pause() {
  {
    const std::lock_guard lock(pool_.mutex_);
    --pool_.pauses_;
  }
  pool_.changed_.notify_all();
}

}  // namespace inferscale::catalog
