#include "cli/config.h"

#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include <unistd.h>

namespace inferscale {
namespace {

class CliConfig : public testing::Test {
 protected:
  CliConfig() {
    std::string pattern = (std::filesystem::temp_directory_path() / "config-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
    inputs_.environment = [this](const std::string& name) -> std::optional<std::string> {
      const auto found = environment_.find(name);
      if (found == environment_.end()) return std::nullopt;
      return found->second;
    };
    WriteFile("");
  }
  ~CliConfig() override { std::filesystem::remove_all(folder_); }

  void WriteFile(const std::string& content) {
    const std::filesystem::path path = folder_ / "config.toml";
    std::ofstream(path) << content;
    inputs_.file = path.string();
  }
  std::string Error() {
    const Result<LoadedConfig> loaded = LoadConfig(inputs_);
    return loaded.ok() ? "" : loaded.status().message();
  }

  std::filesystem::path folder_;
  std::map<std::string, std::string> environment_;
  ConfigInputs inputs_;
};

TEST_F(CliConfig, HasDefaultsForEverything) {
  const Result<LoadedConfig> loaded = LoadConfig(inputs_);
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  EXPECT_EQ(loaded->config.top_k, 20);
  EXPECT_EQ(loaded->config.user, "me");
  EXPECT_EQ(loaded->config.codec, "int4");
  EXPECT_EQ(loaded->config.kv_host_bytes, std::int64_t{1} << 30);
  EXPECT_EQ(loaded->config.data_dir.string().find('~'), std::string::npos);
  EXPECT_EQ(loaded->config.model.filename(), "SmolLM2-135M-Instruct-Q4_1.gguf");
  EXPECT_FALSE(loaded->Given("top-k"));
}

TEST_F(CliConfig, FlagWinsOverEnvironmentOverFileOverDefault) {
  WriteFile("top_k = 1\nuser = \"file\"\ncodec = \"f16\"\n");
  environment_["INFERSCALE_TOP_K"] = "2";
  environment_["INFERSCALE_USER"] = "environment";
  inputs_.flags["top-k"] = "3";
  const Result<LoadedConfig> loaded = LoadConfig(inputs_);
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  EXPECT_EQ(loaded->config.top_k, 3);
  EXPECT_EQ(loaded->config.user, "environment");
  EXPECT_EQ(loaded->config.codec, "f16");
  EXPECT_EQ(loaded->sources.at("top-k"), ConfigSource::kFlag);
  EXPECT_EQ(loaded->sources.at("user"), ConfigSource::kEnvironment);
  EXPECT_EQ(loaded->sources.at("codec"), ConfigSource::kFile);
  EXPECT_EQ(loaded->sources.at("recipe"), ConfigSource::kDefault);
}

TEST_F(CliConfig, FileOfTheEnvironmentIsReadWithoutAFlag) {
  WriteFile("user = \"anna\"\n");
  environment_["INFERSCALE_CONFIG"] = *inputs_.file;
  inputs_.file.reset();
  const Result<LoadedConfig> loaded = LoadConfig(inputs_);
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  EXPECT_EQ(loaded->config.user, "anna");
}

TEST_F(CliConfig, UnknownKeyNamesFileLineAndTheNearestKey) {
  WriteFile("# comment\nuser = \"a\"\ntopk = 3\n");
  EXPECT_NE(Error().find("config.toml:3: topk"), std::string::npos) << Error();
  EXPECT_NE(Error().find("did you mean top_k"), std::string::npos) << Error();
  WriteFile("entirely_different = 3\n");
  EXPECT_NE(Error().find("kv_file_bytes"), std::string::npos) << Error();
  WriteFile("[section]\nuser = \"a\"\n");
  EXPECT_NE(Error().find("config.toml:1: section"), std::string::npos) << Error();
}

TEST_F(CliConfig, BadValueNamesItsPlaceAndWhatIsAllowed) {
  WriteFile("\ncodec = \"int2\"\n");
  EXPECT_NE(Error().find("config.toml:2: codec: the value \"int2\""), std::string::npos) << Error();
  EXPECT_NE(Error().find("f32, f16, bf16, int8 or int4"), std::string::npos) << Error();
  WriteFile("top_k = true\n");
  EXPECT_NE(Error().find("config.toml:1: top_k"), std::string::npos) << Error();
  WriteFile("top_k = [1]\n");
  EXPECT_NE(Error().find("config.toml:1: top_k"), std::string::npos) << Error();
  WriteFile("not toml at all");
  EXPECT_NE(Error().find("config.toml:1: not TOML"), std::string::npos) << Error();
  WriteFile("");
  environment_["INFERSCALE_TOP_K"] = "many";
  EXPECT_NE(Error().find("INFERSCALE_TOP_K: the value \"many\""), std::string::npos) << Error();
  environment_.clear();
  inputs_.flags["threads"] = "-1";
  EXPECT_NE(Error().find("--threads: the value \"-1\""), std::string::npos) << Error();
}

TEST_F(CliConfig, EveryOptionRefusesWhatItCannotBe) {
  const std::map<std::string, std::vector<std::string>> bad = {
      {"data-dir", {""}},
      {"model", {""}},
      {"extraction", {"", "LLM", "auto "}},
      {"recipe", {"", "primer:", "primer:x", "primers"}},
      {"codec", {"", "int3"}},
      {"top-k", {"", "-1", "1001", "1.5", " 3", "3 ", "99999999999"}},
      {"context-tokens", {"1", "255", "1048577"}},
      {"parallel-sequences", {"0", "65"}},
      {"threads", {"513"}},
      {"gpu-layers", {"-1"}},
      {"kv-host-bytes", {"", "G", "-1", "4X", "4GG", "1e30", "nan", "inf"}},
      {"kv-file-bytes", {"99999999T"}},
      {"log-level", {"", "loud"}},
      {"user", {"", std::string(257, 'a'), std::string("a\0b", 3)}},
  };
  for (const auto& [name, values] : bad) {
    for (const std::string& value : values) {
      inputs_.flags = {{name, value}};
      EXPECT_FALSE(LoadConfig(inputs_).ok()) << name << " = " << value;
    }
  }
}

TEST_F(CliConfig, MissingFileThatWasAskedForIsAnError) {
  inputs_.file = (folder_ / "none.toml").string();
  const Result<LoadedConfig> loaded = LoadConfig(inputs_);
  ASSERT_FALSE(loaded.ok());
  EXPECT_NE(loaded.status().message().find("none.toml"), std::string::npos);
}

TEST_F(CliConfig, SecretsStayOutOfMessages) {
  inputs_.flags["extractor-key"] = std::string("hunter2\0", 8);
  EXPECT_FALSE(Error().empty());
  EXPECT_EQ(Error().find("hunter2"), std::string::npos) << Error();
}

TEST_F(CliConfig, HomeFolderIsPutIn) {
  WriteFile("data_dir = \"~/memories\"\n");
  const Result<LoadedConfig> loaded = LoadConfig(inputs_);
  ASSERT_TRUE(loaded.ok());
  EXPECT_TRUE(loaded->config.data_dir.is_absolute()) << loaded->config.data_dir;
  EXPECT_EQ(loaded->config.data_dir.filename(), "memories");
}

TEST(ByteCount, ReadsSizesWithUnits) {
  const std::map<std::string, std::int64_t> sizes = {{"0", 0},
                                                     {"1024", 1024},
                                                     {"4K", 4096},
                                                     {"500M", 500 << 20},
                                                     {"1G", std::int64_t{1} << 30},
                                                     {"1.5g", std::int64_t{3} << 29},
                                                     {"2GiB", std::int64_t{2} << 30},
                                                     {"2GB", std::int64_t{2} << 30},
                                                     {"1T", std::int64_t{1} << 40},
                                                     {"12B", 12}};
  for (const auto& [text, bytes] : sizes) {
    const Result<std::int64_t> parsed = ParseByteCount(text);
    ASSERT_TRUE(parsed.ok()) << text;
    EXPECT_EQ(*parsed, bytes) << text;
  }
}

TEST(ByteCount, IsShownShort) {
  EXPECT_EQ(FormatByteCount(0), "0 bytes");
  EXPECT_EQ(FormatByteCount(1536), "1.5 KiB");
  EXPECT_EQ(FormatByteCount(std::int64_t{20} << 30), "20 GiB");
}

TEST(ConfigurationPage, IsTheOneInDocs) {
  std::ifstream file(INFERSCALE_SOURCE_DIR "/docs/configuration.md");
  const std::string page((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  EXPECT_EQ(page, ConfigurationMarkdown())
      << "run: build/release/inferscale config --markdown > docs/configuration.md";
}

TEST(ConfigurationPage, NamesAreUnique) {
  std::set<std::string> names;
  for (const ConfigOption& option : ConfigOptions()) {
    EXPECT_TRUE(names.insert(option.Flag()).second);
    EXPECT_TRUE(names.insert(option.Environment()).second);
    EXPECT_TRUE(names.insert(option.TomlKey()).second || option.TomlKey() == option.name);
  }
}

}  // namespace
}  // namespace inferscale
