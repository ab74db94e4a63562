// Runs a libFuzzer target without libFuzzer: every corpus file as it is, cut at many lengths, and
// under a fixed number of random changes. The seed is fixed, so a failure repeats.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

using Bytes = std::vector<uint8_t>;

constexpr int kDefaultMutations = 2000;
constexpr size_t kMaxTruncations = 512;
constexpr size_t kMaxRandomBytes = 512;

void RunInput(const Bytes& input) {
  // A copy of exactly this size lets the address sanitizer see a read past the end.
  Bytes exact(input);
  exact.shrink_to_fit();
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
}

Bytes Mutate(const Bytes& seed, std::mt19937_64& random) {
  static constexpr uint8_t kInteresting[] = {0x00, 0x01, 0x7f, 0x80, 0xff};
  Bytes bytes(seed);
  const int changes = 1 + static_cast<int>(random() % 4);
  for (int change = 0; change < changes && !bytes.empty(); ++change) {
    const size_t at = random() % bytes.size();
    switch (random() % 5) {
      case 0:
        bytes[at] ^= static_cast<uint8_t>(1u << (random() % 8));
        break;
      case 1:
        bytes[at] = kInteresting[random() % std::size(kInteresting)];
        break;
      case 2: {  // a run of one value, as a hostile size or count would be
        const size_t end = std::min(bytes.size(), at + (size_t{1} << (random() % 4)));
        std::fill(bytes.begin() + at, bytes.begin() + end, kInteresting[random() % 5]);
        break;
      }
      case 3:
        bytes.resize(at);
        break;
      default:
        bytes.insert(bytes.begin() + at, 1 + random() % 8, static_cast<uint8_t>(random()));
        break;
    }
  }
  return bytes;
}

std::vector<Bytes> ReadCorpus(int argc, char** argv) {
  std::vector<std::filesystem::path> paths;
  for (int index = 1; index < argc; ++index) {
    std::error_code error;
    if (std::filesystem::is_directory(argv[index], error)) {
      for (const auto& entry : std::filesystem::recursive_directory_iterator(argv[index])) {
        if (entry.is_regular_file()) paths.push_back(entry.path());
      }
    } else if (std::filesystem::is_regular_file(argv[index], error)) {
      paths.emplace_back(argv[index]);
    }
  }
  std::sort(paths.begin(), paths.end());
  std::vector<Bytes> corpus;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return corpus;
}

}  // namespace

int main(int argc, char** argv) {
  const char* wanted = std::getenv("INFERSCALE_FUZZ_MUTATIONS");
  const int mutations = wanted != nullptr ? std::atoi(wanted) : kDefaultMutations;
  std::vector<Bytes> corpus = ReadCorpus(argc, argv);
  const size_t corpus_files = corpus.size();

  RunInput({});
  std::mt19937_64 random(1);
  for (const Bytes& input : corpus) {
    RunInput(input);
    const size_t step = std::max<size_t>(1, input.size() / kMaxTruncations);
    for (size_t length = 0; length < input.size(); length += step) {
      RunInput(Bytes(input.begin(), input.begin() + length));
    }
  }
  corpus.emplace_back();
  for (int run = 0; run < mutations; ++run) {
    Bytes seed = corpus[random() % corpus.size()];
    if (seed.empty()) {
      seed.resize(1 + random() % kMaxRandomBytes);
      std::generate(seed.begin(), seed.end(), [&] { return static_cast<uint8_t>(random()); });
    }
    RunInput(Mutate(seed, random));
  }
  std::printf("%zu corpus files, %d mutations\n", corpus_files, mutations);
  return 0;
}
