#include "llama/gguf_metadata.h"

#include <cmath>
#include <fstream>
#include <memory>
#include <system_error>

#include "gguf.h"
#include "llama/llama_runtime.h"

namespace inferscale {
namespace {

struct GgufFree {
  void operator()(gguf_context* context) const { gguf_free(context); }
};

std::optional<double> ScalarNumber(const gguf_context* gguf, std::int64_t key) {
  switch (gguf_get_kv_type(gguf, key)) {
    case GGUF_TYPE_UINT8:
      return gguf_get_val_u8(gguf, key);
    case GGUF_TYPE_INT8:
      return gguf_get_val_i8(gguf, key);
    case GGUF_TYPE_UINT16:
      return gguf_get_val_u16(gguf, key);
    case GGUF_TYPE_INT16:
      return gguf_get_val_i16(gguf, key);
    case GGUF_TYPE_UINT32:
      return gguf_get_val_u32(gguf, key);
    case GGUF_TYPE_INT32:
      return gguf_get_val_i32(gguf, key);
    case GGUF_TYPE_UINT64:
      return static_cast<double>(gguf_get_val_u64(gguf, key));
    case GGUF_TYPE_INT64:
      return static_cast<double>(gguf_get_val_i64(gguf, key));
    case GGUF_TYPE_FLOAT32:
      return gguf_get_val_f32(gguf, key);
    case GGUF_TYPE_FLOAT64:
      return gguf_get_val_f64(gguf, key);
    case GGUF_TYPE_BOOL:
      return gguf_get_val_bool(gguf, key) ? 1.0 : 0.0;
    default:
      return std::nullopt;
  }
}

std::vector<std::int64_t> IntegerArray(const gguf_context* gguf, std::int64_t key) {
  constexpr std::size_t kMaxElements = 4096;
  const std::size_t count = gguf_get_arr_n(gguf, key);
  std::vector<std::int64_t> values;
  if (count > kMaxElements) return values;
  const gguf_type type = gguf_get_arr_type(gguf, key);
  for (std::size_t i = 0; i < count; ++i) {
    if (type == GGUF_TYPE_INT32) {
      values.push_back(static_cast<const std::int32_t*>(gguf_get_arr_data(gguf, key))[i]);
    } else if (type == GGUF_TYPE_UINT32) {
      values.push_back(static_cast<const std::uint32_t*>(gguf_get_arr_data(gguf, key))[i]);
    } else if (type == GGUF_TYPE_BOOL) {
      values.push_back(static_cast<const std::int8_t*>(gguf_get_arr_data(gguf, key))[i]);
    }
  }
  return values;
}

/// A file whose tensors reach beyond its end loads as garbage or crashes: checked here once.
Status CheckComplete(const gguf_context* gguf, const std::filesystem::path& path,
                     std::int64_t file_bytes) {
  const std::size_t data_begin = gguf_get_data_offset(gguf);
  for (std::int64_t i = 0; i < gguf_get_n_tensors(gguf); ++i) {
    const std::size_t end =
        data_begin + gguf_get_tensor_offset(gguf, i) + gguf_get_tensor_size(gguf, i);
    if (end > static_cast<std::size_t>(file_bytes)) {
      return InvalidArgument("model file " + path.string() + " is cut short: it has " +
                             std::to_string(file_bytes) + " bytes and needs at least " +
                             std::to_string(end) + "; download it again");
    }
  }
  return OkStatus();
}

}  // namespace

std::optional<double> GgufMetadata::Number(const std::string& suffix) const {
  const auto found = numbers.find(architecture + "." + suffix);
  if (found == numbers.end()) return std::nullopt;
  return found->second;
}

std::int64_t GgufMetadata::Integer(const std::string& suffix, std::int64_t fallback) const {
  const std::optional<double> value = Number(suffix);
  if (!value || !std::isfinite(*value) || std::fabs(*value) > 1e15) return fallback;
  return static_cast<std::int64_t>(*value);
}

bool GgufMetadata::HasKeyContaining(const std::string& part) const {
  for (const auto& [key, value] : numbers) {
    if (key.find(part) != std::string::npos) return true;
  }
  for (const auto& [key, value] : arrays) {
    if (key.find(part) != std::string::npos) return true;
  }
  return false;
}

Result<GgufMetadata> ReadGgufMetadata(const std::filesystem::path& path) {
  InitLlamaRuntime();
  std::error_code error;
  if (path.empty()) {
    return NotFound(
        "no model file given; pass --model FILE.gguf or run make demo, which fetches one");
  }
  if (!std::filesystem::exists(path, error)) {
    return NotFound("model file " + path.string() +
                    " does not exist; pass --model FILE.gguf or run make demo, which fetches one");
  }
  if (!std::filesystem::is_regular_file(path, error)) {
    return InvalidArgument("model path " + path.string() + " is not a file; pass a .gguf file");
  }
  GgufMetadata metadata;
  metadata.file_bytes = static_cast<std::int64_t>(std::filesystem::file_size(path, error));
  {
    std::ifstream file(path, std::ios::binary);
    char magic[4] = {};
    if (!file) {
      return FailedPrecondition("model file " + path.string() +
                                " cannot be read; check its permissions");
    }
    if (!file.read(magic, sizeof(magic)) || std::string(magic, 4) != "GGUF") {
      return InvalidArgument("model file " + path.string() +
                             " is not a GGUF file; convert the model to GGUF or pass another file");
    }
  }
  const std::unique_ptr<gguf_context, GgufFree> gguf(
      gguf_init_from_file(path.c_str(), gguf_init_params{.no_alloc = true, .ctx = nullptr}));
  if (!gguf) {
    return InvalidArgument("model file " + path.string() +
                           " is damaged or cut short in its header; download it again");
  }
  for (std::int64_t key = 0; key < gguf_get_n_kv(gguf.get()); ++key) {
    const std::string name = gguf_get_key(gguf.get(), key);
    const gguf_type type = gguf_get_kv_type(gguf.get(), key);
    if (type == GGUF_TYPE_STRING) {
      metadata.strings[name] = gguf_get_val_str(gguf.get(), key);
    } else if (type == GGUF_TYPE_ARRAY) {
      if (name == "tokenizer.ggml.tokens") {
        metadata.vocabulary = static_cast<std::int64_t>(gguf_get_arr_n(gguf.get(), key));
      }
      std::vector<std::int64_t> values = IntegerArray(gguf.get(), key);
      if (!values.empty()) metadata.arrays[name] = std::move(values);
    } else if (const std::optional<double> number = ScalarNumber(gguf.get(), key)) {
      metadata.numbers[name] = *number;
    }
  }
  for (std::int64_t i = 0; i < gguf_get_n_tensors(gguf.get()); ++i) {
    metadata.tensors.insert(gguf_get_tensor_name(gguf.get(), i));
  }
  metadata.architecture = metadata.strings["general.architecture"];
  if (metadata.architecture.empty() || metadata.tensors.empty()) {
    return InvalidArgument("model file " + path.string() +
                           " holds no model (no architecture or no weights); pass a language "
                           "model's GGUF file");
  }
  // The shards of a split model each hold a part of the tensors, all of them complete.
  INFERSCALE_RETURN_IF_ERROR(CheckComplete(gguf.get(), path, metadata.file_bytes));
  return metadata;
}

}  // namespace inferscale
