#ifndef INFERSCALE_BENCH_GPU_BENCH_H_
#define INFERSCALE_BENCH_GPU_BENCH_H_

/// \file gpu_bench.h
/// What the benchmarks on a GPU share: their arguments, and the report that they write.

#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "inferscale/result.h"
#include "kernels/cuda/cuda_status.h"

namespace inferscale::kernels::gpu_bench {

[[noreturn]] inline void Fail(const std::string& what) {
  std::fprintf(stderr, "inferscale: error: %s\n", what.c_str());
  std::exit(1);
}

template <typename T>
T Must(Result<T> result) {
  if (!result.ok()) Fail(result.status().ToString());
  return std::move(result).value();
}

inline void Must(const Status& status) {
  if (!status.ok()) Fail(status.ToString());
}

inline void Must(cudaError_t error) { Must(cuda::ToStatus(error, "CUDA")); }

struct Arguments {
  std::string command;  ///< as it was called
  std::string out;      ///< empty: no file
  bool small = false;
};

/// [--out FILE] [--small]
inline Arguments ReadArguments(int argc, char** argv) {
  Arguments arguments;
  arguments.command = std::filesystem::path(argv[0]).filename().string();
  for (int i = 1; i < argc; ++i) {
    arguments.command += std::string(" ") + argv[i];
    if (std::strcmp(argv[i], "--small") == 0) {
      arguments.small = true;
    } else if (std::strcmp(argv[i], "--out") == 0 && i + 1 < argc) {
      arguments.out = argv[++i];
      arguments.command += " " + arguments.out;
    } else {
      Fail(std::string("unknown argument ") + argv[i] + ": give --out FILE or --small");
    }
  }
  return arguments;
}

/// A report without rows: hardware, versions, date, command.
inline nlohmann::json NewReport(const Arguments& arguments) {
  cudaDeviceProp properties{};
  Must(cudaGetDeviceProperties(&properties, 0));
  int runtime = 0, driver = 0;
  Must(cudaRuntimeGetVersion(&runtime));
  Must(cudaDriverGetVersion(&driver));
  const auto version = [](int number) {
    return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
  };
  char date[32];
  const std::time_t now = std::time(nullptr);
  std::strftime(date, sizeof(date), "%Y-%m-%d", std::gmtime(&now));
  return {{"hardware", properties.name},
          {"versions",
           {{"inferscale", INFERSCALE_VERSION},
            {"cuda_runtime", version(runtime)},
            {"cuda_driver", version(driver)}}},
          {"date", date},
          {"command", arguments.command},
          {"rows", nlohmann::json::array()}};
}

inline void WriteReport(const Arguments& arguments, const nlohmann::json& report) {
  if (arguments.out.empty()) return;
  const std::filesystem::path path(arguments.out);
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path());
  std::ofstream file(path);
  file << report.dump(2) << "\n";
  if (!file.good()) Fail("cannot write " + arguments.out);
}

}  // namespace inferscale::kernels::gpu_bench

#endif  // INFERSCALE_BENCH_GPU_BENCH_H_
