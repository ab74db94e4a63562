#include <future>
#include <memory>
#include <utility>

#include "inferscale/engine.h"

namespace inferscale {

GenerationReport GenerateBlocking(Engine& engine, Composition composition, Sampling sampling,
                                  std::function<void(const TokenEvent&)> on_token) {
  // Shared, because the engine may still be leaving on_done when the report arrives here.
  const auto promise = std::make_shared<std::promise<GenerationReport>>();
  std::future<GenerationReport> report = promise->get_future();
  GenerationCallbacks callbacks;
  callbacks.on_token = std::move(on_token);
  callbacks.on_done = [promise](GenerationReport done) { promise->set_value(std::move(done)); };
  const std::shared_ptr<Generation> generation =
      engine.Generate(std::move(composition), std::move(sampling), std::move(callbacks));
  return report.get();
}

}  // namespace inferscale
