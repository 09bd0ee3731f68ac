#include "server/model/quantize_config.h"

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "server/model/file_io.h"
#include "server/model/safetensors_header.h"

namespace tessera {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr char kAlgorithm[] = "W4A16_NVFP4";
constexpr int kBlock = 16;

OrderedJson Producer() { return {{"name", "tessera"}, {"version", TESSERA_VERSION}}; }

// As both dialects describe a cache of keys and values; nothing is said of kinds that are not known.
OrderedJson KvCacheScheme(const std::string& kv_cache) {
  if (kv_cache == "FP8") return {{"dynamic", false}, {"num_bits", 8}, {"type", "float"}};
  if (kv_cache == "NVFP4") {
    return {{"dynamic", false}, {"group_size", kBlock}, {"num_bits", 4}, {"type", "float"}};
  }
  return nullptr;
}

OrderedJson ModelOptConfig(const std::vector<std::string>& ignore, const std::string& kv_cache) {
  return {
      {"config_groups",
       {{"group_0",
         {{"input_activations", nullptr},
          {"targets", OrderedJson::array({"Linear"})},
          {"weights", {{"dynamic", false}, {"group_size", kBlock}, {"num_bits", 4}, {"type", "float"}}}}}}},
      {"ignore", ignore},
      {"kv_cache_scheme", KvCacheScheme(kv_cache)},
      {"producer", Producer()},
      {"quant_algo", kAlgorithm},
      {"quant_method", "modelopt"}};
}

OrderedJson CompressedTensorsConfig(const std::vector<std::string>& ignore, const std::string& kv_cache) {
  constexpr char kFormat[] = "nvfp4-pack-quantized";
  return {{"config_groups",
           {{"group_0",
             {{"format", kFormat},
              {"input_activations", nullptr},
              {"output_activations", nullptr},
              {"targets", OrderedJson::array({"Linear"})},
              {"weights",
               {{"dynamic", false},
                {"group_size", kBlock},
                {"num_bits", 4},
                {"strategy", "tensor_group"},
                {"symmetric", true},
                {"type", "float"}}}}}}},
          {"format", kFormat},
          {"ignore", ignore},
          {"kv_cache_scheme", KvCacheScheme(kv_cache)},
          {"quant_method", "compressed-tensors"},
          {"quantization_status", "compressed"}};
}

constexpr const char* kSideFiles[] = {"tokenizer.json",
                                      "tokenizer_config.json",
                                      "tokenizer.model",
                                      "tekken.json",
                                      "tiktoken.model",
                                      "vocab.json",
                                      "merges.txt",
                                      "special_tokens_map.json",
                                      "added_tokens.json",
                                      "chat_template.jinja",
                                      "chat_template.json",
                                      "generation_config.json",
                                      "LICENSE",
                                      "LICENSE.txt",
                                      "NOTICE"};
constexpr int64_t kMaxSideFileBytes = int64_t{1} << 30;

}  // namespace

absl::StatusOr<std::string> QuantizedConfigJson(const std::string& config_json, QuantizeDialect dialect,
                                                const std::vector<std::string>& ignore,
                                                const std::string& kv_cache) {
  try {
    OrderedJson config = OrderedJson::parse(config_json);
    for (const char* key : {"torch_dtype", "dtype"}) {  // the one that transformers 4 or 5 wrote
      if (config.contains(key)) config[key] = "bfloat16";
    }
    if (config.contains("num_nextn_predict_layers")) config["num_nextn_predict_layers"] = 0;  // left out
    config["quantization_config"] = dialect == QuantizeDialect::kModelOpt
                                        ? ModelOptConfig(ignore, kv_cache)
                                        : CompressedTensorsConfig(ignore, kv_cache);
    return config.dump(2) + "\n";
  } catch (const nlohmann::json::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat("config.json: ", Printable(error.what())));
  }
}

std::string HfQuantConfigJson(const std::vector<std::string>& ignore, const std::string& kv_cache) {
  const OrderedJson json = {
      {"producer", Producer()},
      {"quantization",
       {{"quant_algo", kAlgorithm},
        {"group_size", kBlock},
        {"kv_cache_quant_algo", kv_cache.empty() ? OrderedJson(nullptr) : OrderedJson(kv_cache)},
        {"exclude_modules", ignore}}}};
  return json.dump(2) + "\n";
}

absl::Status CopySideFiles(const std::string& from, const std::string& to) {
  for (const char* name : kSideFiles) {
    const std::string source = absl::StrCat(from, "/", name);
    std::error_code error;
    if (!std::filesystem::exists(source, error)) continue;
    absl::StatusOr<std::string> content = ReadTextFile(source, kMaxSideFileBytes);
    if (!content.ok()) return content.status();
    if (absl::Status status = WriteNewFile(absl::StrCat(to, "/", name), *content); !status.ok())
      return status;
  }
  return absl::OkStatus();
}

}  // namespace tessera
