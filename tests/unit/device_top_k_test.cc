#include "support/top_k_suite.h"

namespace inferscale::testing {

std::unique_ptr<kernels::Device> MakeTestDevice(std::string* why) {
  auto device = kernels::MakeHostDevice();
  EXPECT_TRUE(device.ok()) << device.status().ToString();
  if (device.ok()) return std::move(*device);
  *why = device.status().ToString();
  return nullptr;
}

Result<std::unique_ptr<kernels::DeviceTopK>> MakeTestTopK(const kernels::TopKSetup& setup) {
  return kernels::MakeHostTopK(setup);
}

}  // namespace inferscale::testing
