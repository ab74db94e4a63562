#include <gtest/gtest.h>

#include "kernels/device.h"
#include "support/transfer_cases.h"

namespace inferscale::kernels {
namespace {

class HostDevice : public testing::Test {
 protected:
  HostDevice() : device_(MakeHostDevice().value()) {}
  std::unique_ptr<Device> device_;
};

TEST_F(HostDevice, MovesKvAsTheCpuKernelsDo) {
  // Steps of seven meet all codecs, types, pairings and arrangements.
  for (std::uint64_t number = 0; number < transfer_cases::Cases(60); ++number) {
    transfer_cases::ExpectSameAsCpu(*device_, 7 * number);
    if (HasFatalFailure()) return;
  }
}

TEST_F(HostDevice, CopiesTheArgumentsOfManyCalls) {
  transfer_cases::ExpectManyCallsInFlight(*device_);
}

TEST_F(HostDevice, RefusesWrongArguments) { transfer_cases::ExpectRefusals(*device_); }

TEST_F(HostDevice, CopiesAndRecords) { transfer_cases::ExpectDeviceWorks(*device_); }

TEST(CudaDevice, IsRefusedWhereThereIsNone) {
  const auto device = MakeCudaDevice(1000);
  ASSERT_FALSE(device.ok());
  EXPECT_EQ(device.status().code(), StatusCode::kUnsupported);
}

}  // namespace
}  // namespace inferscale::kernels
