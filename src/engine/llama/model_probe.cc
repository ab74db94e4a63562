#include "engine/llama/model_probe.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/llama/kv_transfer.h"
#include "kernels/kernels.h"
#include "llama.h"

namespace inferscale {
namespace {

constexpr std::int32_t kProbePositions[] = {0, 1, 4, 16, 64, 256, 1024, 4096, 16384};
constexpr std::int32_t kRelocateFrom = 3;
constexpr std::int32_t kRelocateBy[] = {1, 17, 1000};
constexpr std::int32_t kRelocationTablePositions = 1024;

/// The state after decoding one token alone at `position`.
Result<ParsedState> LoneToken(LlamaContext& context, TokenId token, std::int32_t position,
                              std::int32_t sections, std::vector<std::uint8_t>& blob) {
  context.Remove(0, 0, -1);
  const BatchToken batch[] = {{token, position, 0, true}};
  INFERSCALE_ASSIGN_OR_RETURN(const DecodeOutcome outcome, context.Decode(batch));
  if (outcome != DecodeOutcome::kOk) return Cancelled("the model's probe was aborted");
  const Status read = context.GetState(0, blob);
  context.Remove(0, 0, -1);
  INFERSCALE_RETURN_IF_ERROR(read);
  INFERSCALE_ASSIGN_OR_RETURN(ParsedState state, ParseState(blob, sections));
  for (const StateSection& section : state.sections) {
    if (section.cells() != 1 || section.positions[0] != position) {
      return Unsupported("the engine's state of one token does not hold that token alone");
    }
  }
  return state;
}

float ReadElement(const std::uint8_t* data, std::int32_t type) {
  if (type == kStateF32) {
    float value;
    std::memcpy(&value, data, sizeof(value));
    return value;
  }
  std::uint16_t half;
  std::memcpy(&half, data, sizeof(half));
  if (type == kStateBF16) {
    const std::uint32_t bits = std::uint32_t{half} << 16;
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
  }
  float value;
  kernels::HalfToFloat(&half, &value, 1);
  return value;
}

/// [layers][kv_heads][dim] keys (or values) of a one-token state.
std::vector<float> Rows(std::span<const std::uint8_t> blob, const ParsedState& state, bool keys) {
  std::vector<float> rows;
  const std::int32_t elements = keys ? state.shape.key_elements : state.shape.value_elements;
  for (const StateSection& section : state.sections) {
    for (const std::size_t offset : keys ? section.key_offset : section.value_offset) {
      for (std::int32_t i = 0; i < elements; ++i) {
        rows.push_back(
            ReadElement(blob.data() + offset + std::size_t(i) * state.shape.element_bytes,
                        state.shape.element_type));
      }
    }
  }
  return rows;
}

/// Raises each layer's `worst` to the relative difference of two states' rows. [layers][elements]
Status RaiseToError(const std::vector<float>& expected, const std::vector<float>& actual,
                    double LayerRelocation::*worst, std::vector<LayerRelocation>& layers) {
  const std::size_t elements = expected.size() / layers.size();
  for (std::size_t layer = 0; layer < layers.size(); ++layer) {
    double length = 0, difference = 0;
    for (std::size_t i = layer * elements; i < (layer + 1) * elements; ++i) {
      length += double{expected[i]} * expected[i];
      const double error = double{expected[i]} - actual[i];
      difference += error * error;
    }
    if (!std::isfinite(length) || !std::isfinite(difference))
      return Unsupported("the model's keys or values are not finite");
    const double error = length > 0 ? std::sqrt(difference / length) : (difference > 0 ? 1.0 : 0.0);
    layers[layer].*worst = std::max(layers[layer].*worst, error);
  }
  return OkStatus();
}

/// Heads and their sizes from the metadata, checked against the state.
Result<KvGeometry> GeometryOf(const LlamaModel& model, const StateShape& shape) {
  const GgufMetadata& metadata = model.metadata();
  KvGeometry geometry;
  geometry.layers = shape.layers();
  geometry.kv_heads = llama_model_n_head_kv(model.get());
  const std::int64_t head_dim =
      llama_model_n_embd(model.get()) / std::max(1, llama_model_n_head(model.get()));
  const auto key_dim = metadata.Integer("attention.key_length", head_dim);
  const auto value_dim = metadata.Integer("attention.value_length", head_dim);
  if (geometry.kv_heads < 1 || key_dim * geometry.kv_heads != shape.key_elements ||
      value_dim * geometry.kv_heads != shape.value_elements) {
    return Unsupported(
        "the sizes of the model's keys and values are not those its description gives");
  }
  geometry.key_dim = static_cast<std::int32_t>(key_dim);
  geometry.value_dim = static_cast<std::int32_t>(value_dim);
  return geometry;
}

}  // namespace

std::optional<std::string> KvRefusal(const LlamaModel& model) {
  const GgufMetadata& metadata = model.metadata();
  const std::string& architecture = metadata.architecture;
  const auto tensor_named = [&](const std::string& part) {
    return std::any_of(
        metadata.tensors.begin(), metadata.tensors.end(),
        [&](const std::string& name) { return name.find(part) != std::string::npos; });
  };
  if (llama_model_is_recurrent(model.get()))
    return "the model is recurrent: it has no keys and values";
  if (llama_model_is_hybrid(model.get())) return "the model mixes attention with recurrent layers";
  if (metadata.Integer("attention.causal", 1) == 0) return "the model's attention is not causal";
  switch (llama_model_rope_type(model.get())) {
    case LLAMA_ROPE_TYPE_NORM:
    case LLAMA_ROPE_TYPE_NEOX:
      break;
    case LLAMA_ROPE_TYPE_NONE:
      return "the model has no rotary positions, so its keys cannot be moved";
    default:
      return "the model gives a token several positions (M-RoPE)";
  }
  if (tensor_named("rope_factors_long") || tensor_named("rope_factors_short")) {
    return "the model's rotation depends on the length of the context (LongRoPE)";
  }
  if (const auto scaling = metadata.strings.find(architecture + ".rope.scaling.type");
      scaling != metadata.strings.end() && scaling->second != "none" &&
      scaling->second != "linear" && scaling->second != "yarn") {
    return "the model's rotation scaling '" + scaling->second +
           "' may depend on the length of a step";
  }
  if (metadata.HasKeyContaining("per_layer_input") || tensor_named("per_layer_token_embd")) {
    return "the model feeds embeddings into every layer, which its saved state does not cover";
  }
  if (metadata.HasKeyContaining("kv_lora_rank")) {
    return "the model keeps compressed keys and values (MLA)";
  }
  if (architecture == "llama4") return "the model attends in chunks of the context";
  if (const auto per_layer = metadata.arrays.find(architecture + ".attention.head_count_kv");
      per_layer != metadata.arrays.end() &&
      std::adjacent_find(per_layer->second.begin(), per_layer->second.end(),
                         std::not_equal_to<>()) != per_layer->second.end()) {
    return "the model's layers have different numbers of heads";
  }
  for (const char* part : {"key_length", "value_length"}) {
    const std::string key = std::string("attention.") + part;
    if (metadata.Integer(key + "_swa", 0) != 0 &&
        metadata.Integer(key + "_swa", 0) != metadata.Integer(key, 0)) {
      return "the model's sliding-window layers have heads of another size";
    }
  }
  return std::nullopt;
}

Result<StateShape> CheckStateFormat(LlamaContext& context, std::int32_t sections,
                                    const std::vector<TokenId>& tokens) {
  std::vector<BatchToken> batch;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    batch.push_back({tokens[i], static_cast<std::int32_t>(i), 0, i + 1 == tokens.size()});
  }
  context.Remove(0, 0, -1);
  INFERSCALE_ASSIGN_OR_RETURN(const DecodeOutcome outcome, context.Decode(batch));
  if (outcome != DecodeOutcome::kOk) return Cancelled("the state's check was aborted");
  std::vector<std::uint8_t> blob, again;
  const Status read = context.GetState(0, blob);
  context.Remove(0, 0, -1);
  INFERSCALE_RETURN_IF_ERROR(read);
  INFERSCALE_ASSIGN_OR_RETURN(const ParsedState state, ParseState(blob, sections));
  const auto count = static_cast<std::int32_t>(tokens.size());
  for (const StateSection& section : state.sections) {
    if (section.cells() != count)
      return Unsupported("the engine's state does not hold every token");
  }
  const std::vector<CellRange> ranges(static_cast<std::size_t>(sections), CellRange{0, count});
  RawBuffer rebuilt;
  INFERSCALE_ASSIGN_OR_RETURN(const ParsedState laid_out,
                              LayOutState(state.shape, ranges, 0, rebuilt));
  if (rebuilt.bytes().size() != blob.size() || laid_out.shape != state.shape) {
    return Unsupported("the engine's state has another layout than the one this program writes");
  }
  for (std::int32_t s = 0; s < sections; ++s) {
    const std::size_t key_bytes =
        std::size_t(count) * state.shape.key_elements * state.shape.element_bytes;
    const std::size_t value_bytes =
        std::size_t(count) * state.shape.value_elements * state.shape.element_bytes;
    for (std::size_t layer = 0; layer < state.sections[s].key_offset.size(); ++layer) {
      std::memcpy(rebuilt.data() + laid_out.sections[s].key_offset[layer],
                  blob.data() + state.sections[s].key_offset[layer], key_bytes);
      std::memcpy(rebuilt.data() + laid_out.sections[s].value_offset[layer],
                  blob.data() + state.sections[s].value_offset[layer], value_bytes);
    }
  }
  INFERSCALE_RETURN_IF_ERROR(context.SetState(0, rebuilt.bytes()));
  const Status reread = context.GetState(0, again);
  context.Remove(0, 0, -1);
  INFERSCALE_RETURN_IF_ERROR(reread);
  if (again != blob) return Unsupported("the engine's state changes when it is written back");
  return state.shape;
}

double RelocationCheck::WorstKeys() const {
  double worst = 0;
  for (const LayerRelocation& layer : layers) worst = std::max(worst, layer.keys);
  return worst;
}

double RelocationCheck::WorstValues() const {
  double worst = 0;
  for (const LayerRelocation& layer : layers) worst = std::max(worst, layer.values);
  return worst;
}

bool RelocationCheck::Acceptable() const {
  return !layers.empty() && layers.front().values <= kRelocationTolerance &&
         std::all_of(layers.begin(), layers.end(), [](const LayerRelocation& layer) {
           return layer.values <= kLargestEngineNoise &&
                  layer.keys <= kRelocationTolerance + 2 * layer.values;
         });
}

Result<RelocationCheck> MeasureRelocation(LlamaContext& context, const KvProbe& probe,
                                          const RopeSpec& rope, TokenId token) {
  INFERSCALE_ASSIGN_OR_RETURN(const auto tables,
                              RopeTables::Create(rope, kRelocationTablePositions));
  const KvTransfer transfer(probe.geometry, tables);
  std::vector<std::uint8_t> blob;
  INFERSCALE_ASSIGN_OR_RETURN(const ParsedState origin,
                              LoneToken(context, token, kRelocateFrom, probe.sections, blob));
  INFERSCALE_ASSIGN_OR_RETURN(std::vector<std::uint8_t> payload,
                              transfer.Capture(blob, origin, kRelocateFrom, 1, KvCodec::kF32));
  KvBlockInfo info;
  info.geometry = probe.geometry;
  info.codec = KvCodec::kF32;
  info.tokens = {token};
  INFERSCALE_ASSIGN_OR_RETURN(const auto block,
                              KvBlock::Create(std::move(info), std::move(payload)));
  RelocationCheck worst;
  worst.layers.resize(static_cast<std::size_t>(probe.geometry.layers));
  for (const std::int32_t by : kRelocateBy) {
    const std::int32_t position = kRelocateFrom + by;
    INFERSCALE_ASSIGN_OR_RETURN(const ParsedState expected_state,
                                LoneToken(context, token, position, probe.sections, blob));
    const std::vector<float> expected_keys = Rows(blob, expected_state, true);
    const std::vector<float> expected_values = Rows(blob, expected_state, false);
    const std::vector<CellRange> ranges(static_cast<std::size_t>(probe.sections),
                                        CellRange{position, 1});
    RawBuffer moved;
    INFERSCALE_ASSIGN_OR_RETURN(const ParsedState moved_state,
                                LayOutState(expected_state.shape, ranges, 0, moved));
    const BlockUse use{block.get(), 1, position};
    INFERSCALE_RETURN_IF_ERROR(transfer.Inject(moved.bytes(), moved_state, {&use, 1}));
    INFERSCALE_RETURN_IF_ERROR(RaiseToError(expected_values,
                                            Rows(moved.bytes(), moved_state, false),
                                            &LayerRelocation::values, worst.layers));
    INFERSCALE_RETURN_IF_ERROR(RaiseToError(expected_keys, Rows(moved.bytes(), moved_state, true),
                                            &LayerRelocation::keys, worst.layers));
  }
  return worst;
}

Result<KvProbe> ProbeModel(LlamaContext& context, TokenId token) {
  const LlamaModel& model = context.model();
  if (const std::optional<std::string> refusal = KvRefusal(model)) return Unsupported(*refusal);
  KvProbe probe;
  probe.sections = llama_model_n_swa(model.get()) > 0 ? 2 : 1;
  INFERSCALE_ASSIGN_OR_RETURN(probe.shape,
                              CheckStateFormat(context, probe.sections, {token, token, token}));
  INFERSCALE_ASSIGN_OR_RETURN(probe.geometry, GeometryOf(model, probe.shape));
  std::vector<RopeProbe> rope_probes;
  std::vector<std::uint8_t> blob;
  for (const std::int32_t position : kProbePositions) {
    INFERSCALE_ASSIGN_OR_RETURN(const ParsedState state,
                                LoneToken(context, token, position, probe.sections, blob));
    rope_probes.push_back({position, Rows(blob, state, true)});
  }
  INFERSCALE_ASSIGN_OR_RETURN(
      probe.rope, MeasureRope(rope_probes, probe.geometry.layers, probe.geometry.kv_heads,
                              probe.geometry.key_dim));
  INFERSCALE_ASSIGN_OR_RETURN(probe.relocation,
                              MeasureRelocation(context, probe, probe.rope, token));
  if (!probe.relocation.Acceptable()) {
    return Unsupported("moved keys differ from the engine's own by " +
                       std::to_string(probe.relocation.WorstKeys()) +
                       " of their length, values by " +
                       std::to_string(probe.relocation.WorstValues()) + ", in the first layer " +
                       std::to_string(probe.relocation.layers.front().values));
  }
  return probe;
}

}  // namespace inferscale
