#include "engine/llama/token_sampler.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <numeric>
#include <random>
#include <string>

#include "llama.h"

namespace inferscale {
namespace {

constexpr std::int32_t kPenaltyWindow = 256;
constexpr std::size_t kMaxGrammarBytes = std::size_t{1} << 20;

struct SamplerFree {
  void operator()(llama_sampler* sampler) const { llama_sampler_free(sampler); }
};
using SamplerPtr = std::unique_ptr<llama_sampler, SamplerFree>;

}  // namespace

Status ValidateSampling(const Sampling& sampling) {
  const auto bad = [](const char* name, double value, const char* range) {
    return InvalidArgument(std::string(name) + " must be " + range + ", not " +
                           std::to_string(value));
  };
  if (!(sampling.temperature >= 0 && sampling.temperature <= 100)) {
    return bad("temperature", sampling.temperature, "0 to 100");
  }
  if (!(sampling.top_p > 0 && sampling.top_p <= 1))
    return bad("top_p", sampling.top_p, "above 0, at most 1");
  if (!(sampling.min_p >= 0 && sampling.min_p < 1))
    return bad("min_p", sampling.min_p, "0 to below 1");
  if (sampling.top_k < 0) return bad("top_k", sampling.top_k, "0 (off) or more");
  if (!(sampling.repetition_penalty > 0 && sampling.repetition_penalty <= 10)) {
    return bad("repetition_penalty", sampling.repetition_penalty, "above 0, at most 10");
  }
  if (sampling.max_tokens < 0) return bad("max_tokens", sampling.max_tokens, "0 or more");
  if (sampling.logprobs > 1024) return bad("logprobs", sampling.logprobs, "at most 1024");
  if (sampling.grammar.size() > kMaxGrammarBytes) {
    return InvalidArgument("the grammar is larger than 1 MiB");
  }
  return OkStatus();
}

double LogSumExp(const float* logits, std::int32_t count) {
  const float largest = *std::max_element(logits, logits + count);
  double sum = 0;
  for (std::int32_t i = 0; i < count; ++i) sum += std::exp(double{logits[i]} - largest);
  return largest + std::log(sum);
}

struct TokenSampler::Impl {
  std::int32_t vocabulary = 0;
  std::int32_t logprobs = -1;
  bool plain_greedy = false;
  SamplerPtr chain;
  SamplerPtr grammar;
  bool grammar_waits = false;  ///< for what makes it hold
  std::vector<llama_token_data> candidates;

  Status AddGrammar(const llama_vocab* vocab, const Sampling& sampling) {
    grammar_waits = !sampling.grammar_triggers.empty() || !sampling.grammar_trigger_tokens.empty();
    try {
      if (grammar_waits) {
        std::vector<const char*> patterns;
        for (const std::string& pattern : sampling.grammar_triggers)
          patterns.push_back(pattern.c_str());
        grammar.reset(llama_sampler_init_grammar_lazy_patterns(
            vocab, sampling.grammar.c_str(), "root", patterns.data(), patterns.size(),
            sampling.grammar_trigger_tokens.data(), sampling.grammar_trigger_tokens.size()));
      } else {
        grammar.reset(llama_sampler_init_grammar(vocab, sampling.grammar.c_str(), "root"));
        for (const TokenId id : sampling.grammar_prefill) {
          if (grammar) llama_sampler_accept(grammar.get(), id);
        }
      }
    } catch (const std::exception&) {
      grammar.reset();
    }
    if (grammar) return OkStatus();
    return InvalidArgument("the grammar does not parse; it must be GBNF with a rule 'root'");
  }

  /// What the grammar was to hold from here on may not be what the model has begun: then it is
  /// free.
  void AcceptByGrammar(TokenId id) {
    if (!grammar) return;
    try {
      llama_sampler_accept(grammar.get(), id);
    } catch (const std::exception&) {
      if (!grammar_waits) throw;
      grammar.reset();
    }
  }

  void Fill(const float* logits) {
    candidates.resize(static_cast<std::size_t>(vocabulary));
    for (std::int32_t i = 0; i < vocabulary; ++i) candidates[i] = {i, logits[i], 0.0F};
  }

  Result<TokenId> ApplyChain() {
    llama_token_data_array array{candidates.data(), candidates.size(), -1, false};
    llama_sampler_apply(chain.get(), &array);
    if (array.selected < 0 || array.selected >= static_cast<std::int64_t>(array.size)) {
      return Internal("no token could be sampled");
    }
    return array.data[array.selected].id;
  }

  bool GrammarAccepts(TokenId id) {
    llama_token_data single{id, 1.0F, 0.0F};
    llama_token_data_array array{&single, 1, -1, false};
    llama_sampler_apply(grammar.get(), &array);
    return single.logit != -std::numeric_limits<float>::infinity();
  }

  Result<TokenId> Pick(const float* logits) {
    if (plain_greedy && !grammar) {
      return static_cast<TokenId>(std::max_element(logits, logits + vocabulary) - logits);
    }
    Fill(logits);
    TokenId id = 0;
    if (plain_greedy) {
      id = static_cast<TokenId>(std::max_element(logits, logits + vocabulary) - logits);
    } else {
      INFERSCALE_ASSIGN_OR_RETURN(id, ApplyChain());
    }
    // Testing one token against a grammar is far cheaper than testing the whole vocabulary.
    if (grammar && !GrammarAccepts(id)) {
      Fill(logits);
      llama_token_data_array array{candidates.data(), candidates.size(), -1, false};
      llama_sampler_apply(grammar.get(), &array);
      const auto best = std::max_element(
          candidates.begin(), candidates.end(),
          [](const llama_token_data& a, const llama_token_data& b) { return a.logit < b.logit; });
      if (best->logit == -std::numeric_limits<float>::infinity()) {
        return Internal("the grammar allows no further token");
      }
      if (plain_greedy) {
        id = best->id;
      } else {
        std::erase_if(candidates, [](const llama_token_data& candidate) {
          return candidate.logit == -std::numeric_limits<float>::infinity();
        });
        INFERSCALE_ASSIGN_OR_RETURN(id, ApplyChain());
      }
    }
    return id;
  }
};

TokenSampler::TokenSampler() : impl_(std::make_unique<Impl>()) {}
TokenSampler::~TokenSampler() = default;

Result<std::unique_ptr<TokenSampler>> TokenSampler::Create(const llama_vocab* vocab,
                                                           std::int32_t vocabulary,
                                                           const Sampling& sampling) {
  INFERSCALE_RETURN_IF_ERROR(ValidateSampling(sampling));
  auto sampler = std::unique_ptr<TokenSampler>(new TokenSampler());
  Impl& impl = *sampler->impl_;
  impl.vocabulary = vocabulary;
  impl.logprobs = sampling.logprobs;
  const bool penalised = sampling.repetition_penalty != 1.0;
  impl.plain_greedy = sampling.temperature <= 0 && !penalised;
  if (!impl.plain_greedy) {
    impl.chain.reset(llama_sampler_chain_init(llama_sampler_chain_default_params()));
    const auto add = [&](llama_sampler* part) { llama_sampler_chain_add(impl.chain.get(), part); };
    if (penalised) {
      add(llama_sampler_init_penalties(
          vocabulary, kPenaltyWindow, static_cast<float>(sampling.repetition_penalty), 0.0F, 0.0F));
    }
    if (sampling.temperature <= 0) {
      add(llama_sampler_init_greedy());
    } else {
      if (sampling.top_k > 0) add(llama_sampler_init_top_k(sampling.top_k));
      if (sampling.top_p < 1) add(llama_sampler_init_top_p(static_cast<float>(sampling.top_p), 1));
      if (sampling.min_p > 0) add(llama_sampler_init_min_p(static_cast<float>(sampling.min_p), 1));
      add(llama_sampler_init_temp(static_cast<float>(sampling.temperature)));
      add(llama_sampler_init_dist(sampling.seed ? *sampling.seed : std::random_device{}()));
    }
  }
  if (!sampling.grammar.empty()) INFERSCALE_RETURN_IF_ERROR(impl.AddGrammar(vocab, sampling));
  return sampler;
}

Result<TokenSampler::Choice> TokenSampler::Sample(const float* logits) {
  Choice choice;
  try {
    INFERSCALE_ASSIGN_OR_RETURN(choice.id, impl_->Pick(logits));
    if (!std::isfinite(logits[choice.id])) return Internal("the model produced no finite logits");
    if (impl_->chain) llama_sampler_accept(impl_->chain.get(), choice.id);
    impl_->AcceptByGrammar(choice.id);
  } catch (const std::exception& error) {
    return Internal(std::string("sampling failed: ") + error.what());
  }
  if (impl_->logprobs >= 0) {
    const double total = LogSumExp(logits, impl_->vocabulary);
    choice.logprob = static_cast<float>(logits[choice.id] - total);
    const auto count = static_cast<std::size_t>(std::min(impl_->logprobs, impl_->vocabulary));
    std::vector<TokenId> order(static_cast<std::size_t>(impl_->vocabulary));
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count),
                      order.end(), [&](TokenId a, TokenId b) { return logits[a] > logits[b]; });
    for (std::size_t i = 0; i < count; ++i) {
      choice.top.emplace_back(order[i], static_cast<float>(logits[order[i]] - total));
    }
  }
  return choice;
}

}  // namespace inferscale
